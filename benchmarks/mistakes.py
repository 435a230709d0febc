"""A catalogue of mistakes that authors make, each a change of a correct program's text. Data for benchmarks/loop.py.

BREAKING: what the language refuses. WRONG: what it accepts and what computes something else.
"""

from __future__ import annotations

from dataclasses import dataclass

from coda_synth.tasks.catalog import worked_candidate

BLOCK, SWIGLU, RESIDUAL, GELU, ROPE, LOSS = (
    "residual_rmsnorm_swiglu",
    "linear_swiglu",
    "linear_residual",
    "linear_bias_gelu",
    "linear_rope",
    "lm_head_cross_entropy",
)


@dataclass(frozen=True, slots=True)
class Mistake:
    """`old` of the task's worked candidate becomes `new`, at its first place."""

    name: str
    task: str
    old: str
    new: str

    also: tuple[str, str] = ("", "")  # a second change that belongs to the same mistake

    @property
    def text(self) -> str:
        good = worked_candidate(self.task)
        if self.old not in good:
            raise ValueError(f"{self.name}: the worked candidate of {self.task} has no {self.old!r}")
        return (
            good.replace(self.old, self.new, 1).replace(*self.also, 1)
            if self.also[0]
            else good.replace(self.old, self.new, 1)
        )


def _on_block(*rows: tuple[str, str, str]) -> tuple[Mistake, ...]:
    return tuple(Mistake(name, BLOCK, old, new) for name, old, new in rows)


BREAKING: tuple[Mistake, ...] = (
    *_on_block(
        ("a misspelt word", "silu(", "sillu("),
        ("another library's word", "gemm(y, w)", "matmul(y, w)"),
        ("a word of torch", "rsqrt(", "torch.rsqrt("),
        ("a method", "silu(even(z))", "even(z).silu()"),
        ("@", "gemm(y, w) + x", "y @ w + x"),
        ("a misspelt name", "h * gamma", "h * gama"),
        ("a wrong dim", 'tile_sum(h * h, "N")', 'tile_sum(h * h, "K")'),
        ("a dim in lower case", 'size("N")', 'size("n")'),
        ("a dim without quotes", 'ssq: Partial["M", "N"]', 'ssq: Partial[M, "N"]'),
        ("a partial used in its kernel", 'tile_sum(h * h, "N")}', 'tile_sum(h * h, "N") * 0.5}'),
        ("a kernel's word in a finisher", "total_sum(ssq)", 'tile_sum(ssq, "N")'),
        ("a finisher's word in a kernel", 'tile_sum(h * h, "N")', "total_sum(h * h)"),
        ("sum in a kernel", 'tile_sum(h * h, "N")', "sum(h * h)"),
        ("a reduction without its dim", 'tile_sum(h * h, "N")', "tile_sum(h * h)"),
        ("a keyword argument", 'tile_sum(h * h, "N")', 'tile_sum(h * h, dim="N")'),
        ("a root as a power", 'rsqrt(total_sum(ssq) / size("N") + eps)', '(total_sum(ssq) / size("N") + eps) ** -0.5'),
        ("+=", "    z = gemm(hg, w) * rstd\n", "    z = gemm(hg, w)\n    z *= rstd\n"),
        ("slicing columns", "odd(z)", "z[:, 1::2]"),
        ("a conditional expression", "h * gamma", "h * gamma if h > 0 else h"),
        ("a chained comparison", "h * gamma", "where(0 < h < 1, h * gamma, h)"),
        ("and", "h * gamma", "where(h > 0 and h < 1, h * gamma, h)"),
        ("not", "h * gamma", "where(not h > 0, h * gamma, h)"),
        ("a number as a condition", "h * gamma", "where(h, h * gamma, h)"),
        ("a condition as a number", "h * gamma", "h * (gamma > 0)"),
        ("a transposed operand", "gemm(y, w)", "gemm(y, w.T)"),
        ("a bad tile", "@kernel\ndef out_proj", "@kernel(block_m=100)\ndef out_proj"),
        ("a hint by another name", "@kernel\ndef out_proj", "@kernel(num_stages=3)\ndef out_proj"),
        ("a mainloop without quotes", "@kernel\ndef out_proj", "@kernel(mainloop=hopper)\ndef out_proj"),
        ("a schedule for a finisher", "@finisher", "@finisher(block_m=64)"),
        ("a misspelt decorator", "@finisher", "@finnisher"),
        ("no decorator", "@kernel\ndef gate_up", "def gate_up"),
        ("an import", "@prepare", "import torch\n\n\n@prepare"),
        ("a default", "eps: Scalar):", "eps: Scalar = 1e-5):"),
        ("float for Scalar", "eps: Scalar):", "eps: float):"),
        ("a type in lower case", 'rstd: Tensor["M"]', 'rstd: tensor["M"]'),
        ("a type on a local", "    h = gemm", "    h: Tensor = gemm"),
        ("a misspelt unit", "a = out_proj(", "a = out_prj("),
        ("a misspelt output", "a.ssq", "a.sqq"),
        ("a whole call passed on", "p.w, r.rstd", "p, r.rstd"),
        ("an argument too few", "rms(a.ssq, eps)", "rms(a.ssq)"),
        ("an argument too many", "rms(a.ssq, eps)", "rms(a.ssq, eps, x)"),
        ("a misspelt keyword", "rms(a.ssq, eps)", "rms(a.ssq, epss=eps)"),
        ("a misspelt result", '"act": b.act', '"acts": b.act'),
        ("a wrong type in the program", '    gamma: Tensor["D"]', '    gamma: Tensor["F"]'),
        ("a misspelt input", '    gamma: Tensor["D"]', '    gama: Tensor["D"]'),
        ("a wrong dim in a preparation", 'w_up, "F")', 'w_up, "N")'),
        ("a colon forgotten", "eps: Scalar):\n    return", "eps: Scalar)\n    return"),
        ("a statement that does nothing", "    z = gemm(hg, w) * rstd\n", "    z = gemm(hg, w) * rstd\n    pass\n"),
        ("a value dropped", "    z = gemm(hg, w) * rstd\n", "    z = gemm(hg, w) * rstd\n    z * 2.0\n"),
        ("a number in quotes", "@prepare", 'SCALE = "0.5"\n\n\n@prepare'),
        ("a number too large", "h * gamma", "minimum(h * gamma, 1e50)"),
        ("a dtype by another name", "h * gamma", 'cast(h * gamma, "bf16")'),
    ),
    Mistake(
        "a value returned without its name",
        SWIGLU,
        'return {"act": silu',
        "act = silu",
        ("odd(z)}", "odd(z)\n    return act"),
    ),
)


def _on(task: str, *rows: tuple[str, ...]) -> tuple[Mistake, ...]:
    return tuple(Mistake(row[0], task, row[1], row[2], (row[3], row[4]) if len(row) > 3 else ("", "")) for row in rows)


WRONG: tuple[Mistake, ...] = (
    *_on(
        BLOCK,
        ("the rescale is missing", "gemm(hg, w) * rstd", "gemm(hg, w)"),
        ("the rescale is applied twice", "* rstd", "* rstd * rstd"),
        ("gate and up are swapped", "silu(even(z)) * odd(z)", "silu(odd(z)) * even(z)"),
        ("weights are concatenated, not interleaved", "interleave(w_gate", "concat(w_gate"),
        ("the residual has the wrong sign", "gemm(y, w) + x", "gemm(y, w) - x"),
        ("the residual is missing", "gemm(y, w) + x", "gemm(y, w)"),
        ("a stale statistic", "h = gemm(y, w) + x", "g = gemm(y, w)\n    h = g + x", "h * h", "g * g"),
        ("the mean is a sum", ' / size("N")', ""),
        ("eps is missing", " + eps", ""),
        ("sqrt for rsqrt", "rsqrt(total", "sqrt(total"),
        ("the gain is missing", "h * gamma", "h"),
        ("the gain is applied to the residual stream too", '"x": h,', '"x": h * gamma,'),
        ("gelu for silu", "silu(even", "gelu(even"),
        ("no activation", "silu(even(z))", "even(z)"),
        ("magnitudes for squares", "tile_sum(h * h", "tile_sum(abs(h)"),
        ("sigmoid for silu", "silu(even", "sigmoid(even"),
    ),
    *_on(
        ROPE,
        ("the sine has the wrong sign", "a * c - b * s, b * c + a * s", "a * c + b * s, b * c - a * s"),
        (
            "pairs are neighbours, not halves",
            'low(z, "H"), high(z, "H")',
            "even(z), odd(z)",
            'join(a * c - b * s, b * c + a * s, "H")',
            "interleave(a * c - b * s, b * c + a * s)",
        ),
        ("frequencies in radians, not turns", "inv_freq / (2 * pi)", "inv_freq * 1.0"),
        ("values are rotated too", "v = linear(x, w_v)", "v = rotary(x, w_v, pos, f.hi, f.lo)"),
        ("keys are not rotated", "k = rotary(x, w_k, pos, f.hi, f.lo)", "k = linear(x, w_k)"),
    ),
    *_on(
        LOSS,
        ("ignored rows count", "where(kept, total - chosen, 0.0)", "total - chosen"),
        ("the loss has the wrong sign", "total - chosen", "chosen - total"),
        ("the mean is over all rows", "maximum(sum(kept), 1.0)", 'size("M")'),
        ("a maximum for a logsumexp", "tile_logsumexp(z", "tile_max(z"),
    ),
    *_on(
        GELU,
        ("the bias is missing", "gemm(x, w) + b", "gemm(x, w)"),
        ("the bias comes after the activation", "gelu(gemm(x, w) + b)", "gelu(gemm(x, w)) + b"),
    ),
)
