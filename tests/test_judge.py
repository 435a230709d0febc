"""Candidates end to end through real children, without a GPU: honest ones pass, wrong ones fail and are told why."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from coda_synth.coda_api.schedule import Schedule
from coda_synth.evaluator import references
from coda_synth.evaluator.evaluation import Candidate, Evaluation, Verdict
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.judge import Judge, JudgeError, Limits
from coda_synth.evaluator.measured import Parts
from coda_synth.evaluator.serial import from_data, to_data
from coda_synth.tasks.catalog import UnknownTask, worked_candidate

from tests.representative import REPRESENTATIVE


@pytest.fixture(scope="module")
def judge():
    with Judge(device="cpu", seed=7) as made:
        yield made


def judged(judge, task, *edits, **more):
    source = worked_candidate(task)
    for old, new in edits:
        assert old in source
        source = source.replace(old, new)
    return judge.evaluate(Candidate(task, source, **more))


@pytest.mark.parametrize("task", REPRESENTATIVE)
def test_the_worked_candidates_pass(judge, task):
    evaluation = judged(judge, task)
    assert evaluation.verdict is Verdict.PASSED, evaluation.diagnostics
    assert {(c.stage, c.form) for c in evaluation.checks} == {
        ("meaning", "reference"),
        ("interpreter", "descriptor"),
        ("interpreter", "pointer"),
        ("interpreter", "hopper"),
    }
    assert all(r.spill_bytes == 0 for r in evaluation.resources)
    assert evaluation.timings == () and len(evaluation.modelled) == 3 and "waves" in evaluation.profile[0]
    assert from_data(Evaluation, json.loads(json.dumps(to_data(evaluation)))) == evaluation


@pytest.mark.parametrize(
    "hints",
    ['block_m=16, split_k=4, mainloop="portable"', 'block_m=64, warps=4, split_k=4, cut="stream", mainloop="hopper"'],
)
def test_a_candidate_with_its_k_in_pieces_passes(judge, hints):
    """Another order of summation is as honest as one launch's, and is checked with several steps in every piece."""
    evaluation = judged(judge, "linear_residual", ("@kernel\n", f"@kernel(block_n=32, {hints})\n"))
    assert evaluation.verdict is Verdict.PASSED, evaluation.diagnostics
    assert [r.kernel for r in evaluation.resources] == ["project_pieces", "project"]
    assert not evaluation.diagnostics  # the epilogue's launch needs no tensor core
    assert max(c.sizes["K"] for c in evaluation.checks if c.stage == "interpreter") > 4 * 64


WRONG_MEANING = {
    "wrong activation": ("linear_swiglu", ("silu(even(z))", "gelu(even(z))")),
    "gate and up swapped": ("linear_swiglu", ("silu(even(z)) * odd(z)", "silu(odd(z)) * even(z)")),
    "blocks where pairs belong": ("linear_swiglu", ("interleave(", "concat(")),
    "residual subtracted": ("linear_residual", ("gemm(y, w) + x", "gemm(y, w) - x")),
    "bias twice": ("linear_bias_gelu", ("gemm(x, w) + b", "gemm(x, w) + 2 * b")),
    "tanh form of gelu": ("linear_bias_gelu", ("gelu(gemm", "gelu_tanh(gemm")),
    "eps dropped": ("residual_rmsnorm_swiglu", ("+ eps", "+ 0 * eps")),
    "mean not taken": ("residual_rmsnorm_swiglu", ('total_sum(ssq) / size("N")', "total_sum(ssq)")),
    "rotation backwards": ("linear_rope", ("a * c - b * s, b * c + a * s", "a * c + b * s, b * c - a * s")),
    "frequency in one float": ("linear_rope", ("t - hi", "0 * t")),
    "ignored tokens counted": ("lm_head_cross_entropy", ("where(kept, 1.0, 0.0)", "1.0 + 0 * total")),
    "a lower precision": ("linear_residual", ("gemm(y, w) + x", 'cast(gemm(y, w), "float8_e4m3") + x')),
}


@pytest.mark.parametrize("what", WRONG_MEANING)
def test_a_wrong_program_is_incorrect_and_told_where(judge, what):
    task, edit = WRONG_MEANING[what]
    evaluation = judged(judge, task, edit)
    assert evaluation.verdict is Verdict.INCORRECT, evaluation.diagnostics
    said = evaluation.diagnostics[0].message
    assert "seed " in said and "allowed error" in said or "not finite" in said
    place = evaluation.diagnostics[0]
    assert place.line > 0 and place.column > 0 and f"returns it in line {place.line}, column {place.column}" in said
    assert not evaluation.checks[-1].passed


REFUSED = {
    "wrong dims": ("linear_swiglu", ('x: Tensor["T", "D"], w_gate', 'x: Tensor["D", "T"], w_gate')),
    "unknown word": ("linear_swiglu", ("silu(", "sillu(")),
    "an import": ("linear_swiglu", ("@prepare", "import os\n\n@prepare")),
    "an output missing": ("residual_rmsnorm_swiglu", ('"x": a.x, ', "")),
}


@pytest.mark.parametrize("what", REFUSED)
def test_the_language_refuses_with_a_place(judge, what):
    task, edit = REFUSED[what]
    evaluation = judged(judge, task, edit)
    assert evaluation.verdict is Verdict.REJECTED and evaluation.stage == "read"
    assert evaluation.diagnostics[0].line > 0 and evaluation.checks == ()


@pytest.mark.parametrize("source", ["", "\0", "def f(:", "((" * 5000, "x = " + "-" * 100_000 + "1", "~" * 300_000])
def test_a_text_that_is_no_program_is_rejected(judge, source):
    evaluation = judge.evaluate(Candidate("linear_swiglu", source))
    assert evaluation.verdict in (Verdict.REJECTED, Verdict.CRASHED), evaluation.diagnostics
    assert judged(judge, "linear_residual").verdict is Verdict.PASSED


def test_a_schedule_over_the_shared_memory_is_told_what_fits(judge):
    wide = {"a": Schedule(block_m=128, block_n=256, block_k=64, stages=6)}
    evaluation = judged(judge, "linear_swiglu", schedules=wide)
    assert evaluation.verdict is Verdict.BUILD_ERROR and evaluation.diagnostics[0].rule == "OverShared"
    assert "232,448" in evaluation.diagnostics[0].message and "stages=4" in evaluation.diagnostics[0].message
    assert "it is of the call a in line" in evaluation.diagnostics[0].message and evaluation.diagnostics[0].line > 0
    assert evaluation.modelled == evaluation.profile == evaluation.figures == ()  # no time of what cannot run
    fits = judged(judge, "linear_swiglu", schedules={"a": replace(wide["a"], stages=4)})
    assert fits.verdict is Verdict.PASSED


def test_a_kernel_without_a_hopper_text_is_modelled_as_the_portable_one_that_runs(judge):
    shallow = Schedule(block_n=128, stages=1)
    auto = judged(judge, "linear_swiglu", schedules={"a": shallow})
    named = judged(judge, "linear_swiglu", schedules={"a": replace(shallow, mainloop="portable")})
    assert auto.schedules["a"].mainloop == "portable" and "two stages" in auto.diagnostics[0].message
    assert auto.modelled == named.modelled and auto.modelled[0].calls_ms["a"] == auto.modelled[0].estimate_ms


TOGETHER = """
@kernel
def head(h: Tensor["M", "K"], w: Tensor["N", "K"], target: Index["M"]):
    z = gemm(h, w)
    return {"lse": tile_logsumexp(z, "N"), "chosen": pick(z, target)}


@finisher
def finish(lse: Partial["M", "N"], chosen: Tensor["M"], target: Index["M"]):
    total = total_logsumexp(lse)
    kept = target != -100
    loss = where(kept, total - chosen, 0.0)
    return {"lse": total, "loss": loss, "mean": sum(loss) / maximum(sum(where(kept, 1.0, 0.0)), 1.0)}


@program
def lm_head_cross_entropy(h: Tensor["T", "D"], w: Tensor["V", "D"], target: Index["T"]):
    a = head(h, w, target)
    t = finish(a.lse, a.chosen, target)
    return {"loss": t.loss, "lse": t.lse, "mean": t.mean}
"""
APART = TOGETHER.replace("t.mean", "u.mean").replace(
    '    return {"loss"', '    u = finish(a.lse, a.chosen, target)\n    return {"loss"'
)


def test_one_program_that_sums_rows_reads_what_is_stored_anyway_and_spills_nothing(judge):
    """Also where it has to merge the partials of all rows itself, in a call of its own."""
    shared = {}
    for name, text in (("t", TOGETHER), ("u", APART)):
        evaluation = judge.evaluate(Candidate("lm_head_cross_entropy", text))
        assert evaluation.verdict is Verdict.PASSED, evaluation.diagnostics
        (sums,) = [r for r in evaluation.resources if r.kernel.endswith("_sums")]
        assert sums.call == name and sums.spill_bytes == 0
        shared[name] = sums.shared_bytes
    assert shared["t"] < 1024 < shared["u"]  # partials of many rows go through shared memory


def test_a_schedule_for_a_call_that_is_not_there(judge):
    evaluation = judged(judge, "linear_swiglu", schedules={"nope": Schedule()})
    assert evaluation.verdict is Verdict.BUILD_ERROR and "the calls are a" in evaluation.diagnostics[0].message


def test_spills_are_a_warning_in_numbers(judge):
    whole = {"a": Schedule(block_m=128, block_n=256, warps=4, slice_n=256)}
    evaluation = judged(judge, "linear_swiglu", schedules=whole)
    assert evaluation.resources[0].spill_bytes > 0
    assert any(d.rule == "Spills" and d.severity == "warning" for d in evaluation.diagnostics)


def test_the_same_seed_replays_and_another_does_not(judge):
    def ratios(seed):
        found = judge.evaluate(Candidate("linear_residual", worked_candidate("linear_residual")), seed=seed)
        return found.seed, [(c.seed, c.error_ratio, c.worst) for c in found.checks]

    assert ratios(3) == ratios(3) != ratios(4)


def test_a_fresh_seed_each_time_where_none_is_given():
    with Judge(device="cpu") as judge:
        source = worked_candidate("linear_residual").replace("+ x", "- x")
        seeds = {judge.evaluate(Candidate("linear_residual", source)).seed for _ in range(3)}
    assert len(seeds) == 3


def test_children_that_died_are_replaced(judge):
    assert judged(judge, "linear_residual").verdict is Verdict.PASSED
    for child in (judge.builder, *judge.references, judge.interpreter):
        os.kill(child.pid, 9)
    time.sleep(0.2)
    assert judged(judge, "linear_residual").verdict is Verdict.PASSED


def test_a_slow_candidate_is_a_timeout_and_the_next_does_not_notice(judge):
    kept, judge.limits = judge.limits, Limits(check_s=0.01)
    evaluation = judged(judge, "linear_rope")
    judge.limits = kept
    assert evaluation.verdict is Verdict.TIMEOUT and "limit" in evaluation.diagnostics[0].message
    assert judged(judge, "linear_residual").verdict is Verdict.PASSED


def test_a_greedy_candidate_is_a_crash_and_the_next_does_not_notice(judge):
    """Nor is it the judge's fault that the process in which the call at fault would be looked for does not start."""
    judge.interpreter.ready()
    kept, judge.interpreter.memory = judge.interpreter.memory, 1 << 20
    evaluation = judged(judge, "linear_residual")
    judge.interpreter.memory = kept
    assert evaluation.verdict is Verdict.CRASHED and "memory limit" in evaluation.diagnostics[0].message
    assert judged(judge, "linear_residual").verdict is Verdict.PASSED


def test_the_stages_are_told_in_order(judge):
    told = []
    source = worked_candidate("linear_residual")
    judge.evaluate(Candidate("linear_residual", source), on_stage=told.append)
    assert told == ["read", "build", "check"]


def test_what_is_no_verdict(judge):
    with pytest.raises(UnknownTask, match="linear_swiglu"):
        judge.evaluate(Candidate("linear_swigul", ""))
    with pytest.raises(JudgeError, match="sm_90"):
        Judge(target="sm_9")
    with pytest.raises(JudgeError, match="auto, cpu or cuda"):
        Judge(device="tpu")


def test_a_gpu_that_is_asked_for_must_be_there(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with Judge(device="cuda") as judge, pytest.raises(JudgeError, match="no CUDA|none here"):
        judged(judge, "linear_residual")


def test_several_references_judge_as_one_does(judge, monkeypatch):
    source = worked_candidate("linear_residual")
    monkeypatch.setattr(references, "cores", lambda: 16)
    with Judge(device="cpu") as wide:
        assert len({child.pid for child in wide.references}) == 5
        good, wrong = (Candidate("linear_residual", text) for text in (source, source.replace("+ x", "- x")))
        found, alone = (each.evaluate(good, seed=7) for each in (wide, judge))
        assert found.verdict is Verdict.PASSED and [c.error_ratio for c in found.checks] == [
            c.error_ratio for c in alone.checks
        ]
        assert all(child.stages == {} and child.ready() for child in wide.references)
        found, alone = (each.evaluate(wrong, seed=7) for each in (wide, judge))
        assert found.diagnostics == alone.diagnostics and found.verdict is Verdict.INCORRECT


def test_a_task_is_traced_in_the_reference_child(judge):
    graph = judge.trace("linear_swiglu")
    assert graph.task == "linear_swiglu" and sum("mm" in n.op for n in graph.nodes) == 2


def test_the_parent_imports_neither_torch_nor_triton_and_leaves_nobody_behind():
    program = """if True:
        import os, sys, tempfile
        from coda_synth.evaluator.evaluation import Candidate
        from coda_synth.evaluator.judge import Judge
        from coda_synth.tasks.catalog import worked_candidate
        with Judge(device="cpu") as judge:
            found = judge.evaluate(Candidate("linear_residual", worked_candidate("linear_residual")))
            pids = [c.pid for c in (judge.builder, *judge.references, judge.interpreter)]
        assert found.verdict == "PASSED", found.diagnostics
        assert not {"torch", "triton", "numpy"} & set(sys.modules)
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids), pids
    """
    root = str(Path(__file__).resolve().parent.parent)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert done.returncode == 0, done.stderr


def test_an_argument_that_nobody_reads_from_an_output_that_nobody_reads(judge):
    evaluation = judged(
        judge,
        "linear_residual",
        ('x: Tensor["M", "N"])', 'x: Tensor["M", "N"], unread: Tensor["M", "N"])'),
        ("a = project(y, w, x)", "b = project(y, w, x, x)\n    a = project(y, w, x, b.out)"),
    )
    assert evaluation.verdict is Verdict.PASSED, evaluation.diagnostics


def test_sizes_without_a_meaning_are_told_with_the_sizes(judge):
    edit = ("gemm(y, w) + x", "gemm(y, w) + x + 0 * spread(group_sum(x, 16), 16)")
    evaluation = judged(judge, "linear_residual", edit)
    assert evaluation.verdict is not Verdict.PASSED
    assert "16" in evaluation.diagnostics[0].message and "D" in evaluation.diagnostics[0].message


@pytest.mark.parametrize("task", ["linear_swiglu", "residual_rmsnorm_swiglu"])
def test_a_candidate_is_taken_apart_for_the_profile(judge, task):
    """Here on the host's clock: each GEMM without its epilogue, and the peaks."""
    assert judged(judge, task).verdict is Verdict.PASSED
    facts = judge._describe(task, "bfloat16")
    sizes = dict(min(facts.check_shapes, key=lambda sizes: sum(sizes.values())))
    source = worked_candidate(task)
    asked = {"source": source, "facts": to_data(facts), "case": to_data(Case("device", sizes, 1, "normal", "pointer"))}
    found = from_data(Parts, judge.interpreter.request("parts", 60.0, asked).data["parts"])
    gemms = {"linear_swiglu": 1, "residual_rmsnorm_swiglu": 2}[task]
    assert len(found.bare_ms) == gemms and min(found.bare_ms.values()) > 0 and found.notes == ()
    assert found.copy_bytes_per_s > 1e6 and found.matmul_flops_per_s > 1e6
