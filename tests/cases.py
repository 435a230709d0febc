"""Texts that an adversarial tester found: legal programs that once were lowered wrongly, or not at all."""

from __future__ import annotations

_HEAD = """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], t: Tensor["M", "N"], v: Tensor["M", "N/2"], r: Tensor["M"],
      c: Tensor["N"], h: Tensor["H"], i: Index["M"], s: Scalar):
    z = gemm(x, w)
    return {{"y": {expression}}}

@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], t: Tensor["T", "F"], v: Tensor["T", "F/2"], r: Tensor["T"],
      c: Tensor["F"], h: Tensor["H"], i: Index["T"], s: Scalar):
    a = f(x, w, t, v, r, c, h, i, s)
    return {{"y": a.y}}
"""

EPILOGUES = (
    'where((index("N") >= 3) & (index("N") < 9), z, 100.0)',
    "where((z > 0) & ~(c > 0) | (r >= 0), z, t)",
    '(where((i == index("N")) & (i != 3), z, t))',
    "where((z > 0) & (z < 1), z, t)",
    'where(~(size("H") < 100), 1.0, 0.0) * z',
    "where(~(s > 0), z, 0.0) + t",
    "(even(z) + even(c)) * (odd(z) + odd(c))",
    'even(z) * even(cycle(h, "N"))',
    "interleave(even(z), odd(z)) + t + c",
    "z * sigmoid(r)",
    "even(z) * r + v",
    'size("M") * 1000000 * size("N") / 1e9 * z',
    '(index("M") * 1000 * (index("N") * 1000) * 1000) / 1e9 + z',
    'cast(r, "bfloat16") * z',
    "maximum(z, floor(inf))",
    "z * where(r > 0, silu(r), gelu(r))",
    'group_sum(z * z, "H")',
    'z * spread(rsqrt(group_sum(z * z, "H") / size("H") + 1.0), "H")',
    'group_sum(even(z) + v, "H")',
    'group_sum(group_sum(z, "H"), 4)',
    "group_sum(interleave(z, t), 2)",
    "join(low(z, 32) * spread(group_sum(high(z, 32), 16), 16), high(z, 32), 32)",
    'join(low(low(z, "2*H"), "H"), high(high(z, "2*H"), "H"), "H") + v',
    "interleave(even(low(z, 32)), odd(high(z, 32))) + v",
    'z * cast(0.3, "bfloat16") + cast(s, "float16") * t',
    'z * interleave(cycle(h, "N/2"), odd(z))',
    'z * interleave(even(index("N")), odd(t))',
    'z * where(i > cast(3, "float32"), cast(s, "float8_e4m3"), r)',
)


def epilogue_program(expression: str) -> str:
    return _HEAD.format(expression=expression)


# Folds of every word that finishes a partial: of columns to H, of rows to J.
FOLDS = """
@kernel
def f(t: Tensor["M", "N"]):
    mean, m2 = tile_moments(t, "N")
    return {"down": tile_sum(t, "M"), "peak": tile_max(t, "M"), "least": tile_min(t, "M"), "mean": mean, "m2": m2,
            "lse": tile_logsumexp(t, "N")}

@finisher
def columns(down: Partial["N", "M"], peak: Partial["N", "M"], least: Partial["N", "M"], h: Size["H"]):
    return {"sums": fold(total_sum(down), "H"), "spans": fold(total_max(peak) - total_min(least), "H") / 4}

@finisher
def rows(mean: Partial["M", "N"], m2: Partial["M", "N"], lse: Partial["M", "N"], j: Size["J"]):
    mu, var = total_moments(mean, m2)
    total = total_logsumexp(lse)
    return {"lse": total, "moments": fold(mu * var, "J"), "places": fold(total + index("M") / size("M"), "J")}

@program
def p(t: Tensor["T", "F"], h: Tensor["H"], j: Tensor["J"]):
    a = f(t)
    b = columns(a.down, a.peak, a.least, size("H"))
    c = rows(a.mean, a.m2, a.lse, size("J"))
    return {"sums": b.sums, "spans": b.spans, "lse": c.lse, "moments": c.moments, "places": c.places}
"""

PROGRAMS = {
    "two sizes of a group, one kernel": """
@kernel
def f(t: Tensor["M", "N"], g: Tensor["M", "N/H"], h: Tensor["H"]):
    return {"y": t + cycle(h, "N"), "q": g * 2}

@program
def p(t: Tensor["T", "F"], g: Tensor["T", "F/H"], h: Tensor["H"], k: Tensor["T", "F/J"], j: Tensor["J"]):
    a = f(t, g, h)
    b = f(t, k, j)
    return {"y": a.y, "q": a.q, "u": b.y, "o": b.q}
""",
    "folds of one finisher to two dims": """
@kernel
def f(t: Tensor["M", "N"]):
    return {"down": tile_sum(t, "M")}

@finisher
def c(down: Partial["N", "M"], h: Size["H"], j: Size["J"]):
    total = total_sum(down)
    return {"few": fold(total, "H"), "others": fold(total * 2, "J"), "again": fold(total, "H") + 1}

@program
def p(t: Tensor["T", "F"], h: Tensor["H"], j: Tensor["J"]):
    a = f(t)
    b = c(a.down, size("H"), size("J"))
    return {"few": b.few, "others": b.others, "again": b.again}
""",
    "names that the generated text uses": """
@kernel
def T(x: Tensor["M", "K"], w: Tensor["N", "K"], zero_0: Tensor["M", "N"], row: Tensor["M", "N"],
      row_2_ring: Tensor["N"], layout: Tensor["M"]):
    acc = gemm(x, w)
    return {"y": acc + zero_0, "my": acc * layout + row * row_2_ring, "tiles": tile_sum(acc, "N")}

@finisher
def T_epilogue(tiles: Partial["M", "N"]):
    return {"rows": total_sum(tiles), "all": sum(total_sum(tiles))}

@finisher
def T_epilogue_sums(rows: Tensor["M"]):
    return {"live": rows * 2}

@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], t: Tensor["T", "F"], c: Tensor["F"], r: Tensor["T"]):
    a = T(x, w, t, t, c, r)
    b = T_epilogue(a.tiles)
    d = T_epilogue_sums(b.rows)
    return {"y": a.y, "a_y": a.my, "tl": d.live, "torch": b.all}
""",
    "names of what launches share": """
@kernel
def programs_for_pieces(x: Tensor["M", "K"], w: Tensor["N", "K"], t: Tensor["M", "N"], s: Scalar):
    z = gemm(x, w)
    return {"g": z * s + t, "pieces": tile_sum(z, "N")}

@finisher
def processors(q: Partial["M", "N"]):
    return {"v": total_sum(q)}

@program
def p(keep: Tensor["T", "D"], described: Tensor["F", "D"], triton: Tensor["T", "F"], str: Scalar):
    described_2 = programs_for_pieces(keep, described, triton, str)
    programs_for = programs_for_pieces(keep, described, triton, 2)
    launched = processors(described_2.pieces)
    return {"g": described_2.g, "REPEATS": programs_for.g, "torch": launched.v}
""",
    "a size that no tensor of the launch has": """
@kernel
def f(t: Tensor["M", "N"], d: Size["D"]):
    return {"y": t / d}

@program
def p(t: Tensor["T", "F"], h: Tensor["H"]):
    a = f(t, size("H"))
    return {"y": a.y}
""",
    "a literal for a scalar, casts in a finisher": """
@kernel
def f(t: Tensor["M", "N"], s: Scalar):
    return {"y": t * rsqrt(s), "q": tile_sum(t, "N"), "top": tile_max(t, "N")}

@finisher
def g(q: Partial["M", "N"], top: Partial["M", "N"]):
    v = total_sum(q)
    return {"v": cast(v, "bfloat16") + total_max(top), "all": sum(v) * 2}

@program
def p(t: Tensor["T", "F"]):
    a = f(t, 2)
    b = g(a.q, a.top)
    return {"y": a.y, "v": b.v, "all": b.all}
""",
    "heads of keys and of values in one product": """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["2*N", "K"], g: Tensor["H"], pos: Index["M"], hi: Tensor["H/2"]):
    z = gemm(x, w)
    k, v = low(z, "2*H"), high(z, "2*H")
    n = k * spread(rsqrt(group_sum(k * k, "H") / size("H") + 1.0), "H") * cycle(g, "N")
    a, b = low(n, "H"), high(n, "H")
    c, s = rotation(pos, cycle(hi, "N/2"), cycle(hi, "N/2"))
    return {"k": join(a * c - b * s, b * c + a * s, "H"), "v": v}

@program
def p(x: Tensor["T", "D"], w: Tensor["2*F", "D"], g: Tensor["H"], pos: Index["T"], hi: Tensor["H/2"]):
    a = f(x, w, g, pos, hi)
    return {"k": a.k, "v": a.v}
""",
    "pairs of keys and values, and halves of both": """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["2*N", "K"], c: Tensor["N"], h: Size["H"]):
    z = gemm(x, w)
    a, b = low(z, "2*H"), high(z, "2*H")
    return {"k": even(join(a * c - b, b * c + a, "2*H")), "v": odd(z)}

@program
def p(x: Tensor["T", "D"], w: Tensor["2*F", "D"], c: Tensor["F"], g: Tensor["H"]):
    a = f(x, w, c, size("H"))
    return {"k": a.k, "v": a.v}
""",
    "sums of groups over a tile": """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], h: Tensor["H"]):
    z = gemm(x, w)
    return {"q": tile_sum(group_sum(z * z, "H"), "N/H"), "y": z + cycle(h, "N")}

@finisher
def g(q: Partial["M", "N"]):
    return {"v": total_sum(q)}

@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], h: Tensor["H"]):
    a = f(x, w, h)
    b = g(a.q)
    return {"y": a.y, "v": b.v}
""",
    "reductions down the rows": """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["2*N", "K"]):
    z = gemm(x, w)
    a, b = even(z), odd(z)
    return {"y": a * b, "most": tile_max(z, "M"), "least": tile_min(a, "M"), "total": tile_sum(b - 1.0, "M"),
            "both": tile_sum(z - 1.0, "M")}

@finisher
def wide(most: Partial["2*N", "M"], both: Partial["2*N", "M"]):
    return {"most": total_max(most), "both": total_sum(both)}

@finisher
def narrow(least: Partial["N", "M"], total: Partial["N", "M"]):
    return {"least": total_min(least), "total": total_sum(total)}

@program
def p(x: Tensor["T", "D"], w: Tensor["2*F", "D"]):
    a = f(x, w)
    b = wide(a.most, a.both)
    c = narrow(a.least, a.total)
    return {"y": a.y, "most": b.most, "both": b.both, "least": c.least, "total": c.total}
""",
}

# Every way in which groups of "H" columns meet the rest of an epilogue; lowered with sizes that are no power of two.
_FINISH = """
@finisher
def rows(total: Partial["M", "N"], mean: Partial["M", "N"], m2: Partial["M", "N"], lse: Partial["M", "N"],
         narrow: Partial["M", "S"], chosen: Tensor["M"]):
    mu, var = total_moments(mean, m2)
    return {"v": total_sum(total) + mu + var * total_logsumexp(lse) + total_max(narrow) + chosen}

@finisher
def columns(down: Partial["N", "M"]):
    return {"v": total_sum(down)}

@program
def p(x: Tensor["T", "D"], w: Tensor["F", "D"], t: Tensor["T", "F"], c: Tensor["F"], h: Tensor["H"], i: Index["T"]):
    a = f(x, w, t, c, h, i)
    b = rows(a.sum, a.mean, a.m2, a.lse, a.narrow, a.chosen)
    d = columns(a.down)
    return {"y": a.y, "part": a.part, "top": a.top, "v": b.v, "down": d.v}
"""
_KERNEL = """
@kernel
def f(x: Tensor["M", "K"], w: Tensor["N", "K"], t: Tensor["M", "N"], c: Tensor["N"], h: Tensor["H"], i: Index["M"]):
    z = gemm(x, w)
    n = z * spread(rsqrt(group_sum(exp(z / 9), "H") / size("H") + 1.0), "H") * cycle(h, "N") + t
"""
_RETURN = """
    mean, m2 = tile_moments(y, "N")
    return {"y": y, "part": a, "top": group_max(n - 5.0, "H"), "sum": tile_sum(y + 1.0, "N"), "mean": mean, "m2": m2,
            "lse": tile_logsumexp(y, "N"), "narrow": tile_max(a - 5.0, NARROW), "down": tile_sum(y, "M"),
            "chosen": pick(y + 1.0, i)}
"""
GROUPED = {
    "halves": _KERNEL
    + """
    a, b = low(n, "H"), high(n, "H")
    y = join(a - b, b * 2 + a, "H") + c * index("N") / size("N")
"""
    + _RETURN.replace("NARROW", '"N/2"')
    + _FINISH.replace('"S"', '"N/2"'),
    "pairs": _KERNEL
    + """
    least = group_min(even(n) + 5.0, "H")
    a = even(n) * odd(c) + odd(n)
    y = interleave(a, odd(n)) + c * index("N") / size("N")
"""
    + _RETURN.replace("NARROW", '"N/2"')
    + _FINISH.replace('"S"', '"N/2"'),
    "groups in groups": _KERNEL
    + """
    a = group_sum(group_min(n + 5.0, 16), "H/16")
    y = spread(a, "H") + spread(spread(group_max(n, 16), 4), 4) + c * index("N") / size("N")
"""
    + _RETURN.replace("NARROW", '"N/H"')
    + _FINISH.replace('"S"', '"N/H"'),
}
