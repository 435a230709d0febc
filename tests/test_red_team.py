"""The red-team catalogue as tests, one an entry, and the honest candidates that must never be wronged.

Entries are numbered as in docs/red-team.md. I: the language refuses it. L: the judge catches it. Where a candidate as
data cannot even try, the lowering is compromised (tests/compromised_worker.py) and the real judge stands against it.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from coda_synth.agent.confirm import confirmed
from coda_synth.agent.prompting import as_text, prompt
from coda_synth.agent.strategy import choose
from coda_synth.coda_api.errors import Diagnostic, ProgramError
from coda_synth.coda_api.reader import read
from coda_synth.evaluator import baselines, checking, references
from coda_synth.evaluator.checking import Checker
from coda_synth.evaluator.child import Child, ChildRaised, Raised, out_of_memory
from coda_synth.evaluator.correctness import bounds, declared_inputs, judge_outputs
from coda_synth.evaluator.evaluation import Baseline, Candidate, Check, Evaluation, Modelled, Timing, Verdict
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.gpu import gpu_lock
from coda_synth.evaluator.judge import Judge, JudgeError, Limits
from coda_synth.evaluator.measured import Measured, Parts, Sample
from coda_synth.evaluator.on_device import _cut_cases, sample, unlike
from coda_synth.evaluator.race import Lap, WallClock, race
from coda_synth.evaluator.serial import from_data
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.trial import Trial
from coda_synth.runs.ranking import best
from coda_synth.runs.record import Attempt
from coda_synth.runs.report import why_best
from coda_synth.tasks.catalog import task, task_names, worked_candidate

from tests import mutations
from tests.bad_tasks import BAD
from tests.compromised_worker import ATTACKS
from tests.representative import REPRESENTATIVE

ROOT = Path(__file__).resolve().parent.parent
BASE = worked_candidate("linear_residual")
RETURN = 'return {"out": gemm(y, w) + x}'
torch.set_num_threads(1)


# ---- I: the language refuses it --------------------------------------------------------------------------------------


def line(text: str) -> tuple[str, str]:
    """One more line in the kernel."""
    return RETURN, f"{text}\n    {RETURN}"


def value(text: str) -> tuple[str, str]:
    """Another value for the output."""
    return RETURN, f'return {{"out": {text}}}'


def top(text: str) -> tuple[str, str]:
    """Something at top level."""
    return "@kernel\n", f"{text}\n\n\n@kernel\n"


def hint(text: str) -> tuple[str, str]:
    return "@kernel\n", f"@kernel({text})\n"


# entry: what is tried, and the rule that says no
REFUSED: dict[str, tuple[tuple[str, str], str]] = {
    "2 writes into a shared input": (value("accumulate(x, gemm(y, w))"), "AccumulateUse"),
    "3 caches by data pointer": (line("if x.data_ptr() in SEEN: return SEEN[x.data_ptr()]"), "StatementForm"),
    "4 caches by a few values": (value("gemm(y, w) + x * (x[0, 0] == x[7, 3])"), "ExpressionForm"),
    "6 keeps the last answer": (line("global LAST"), "StatementForm"),
    "7 does fifteen calls' work in one": (line("for call in range(15): z = gemm(y, w)"), "StatementForm"),
    "8 lazy tensor": (top("class Lazy(Tensor):\n    pass"), "TopLevel"),
    "9 another stream": (line("with stream(side): z = gemm(y, w)"), "StatementForm"),
    "10 a thread that goes on": (value("Thread(target=later).start()"), "ExpressionForm"),
    "11 a graph of its own": (value("CUDAGraph().replay()"), "ExpressionForm"),
    "12 searches memory for the answer": (value("gc.get_objects()[0]"), "ExpressionForm"),
    "21 flips a backend's flag": (top("torch.backends.cuda.matmul.allow_tf32 = True"), "TopLevel"),
    "22 looks at magnitudes": (value("gemm(y, w) + x if x.max() < 0.55 else x"), "ExpressionForm"),
    "23 looks at a prefix": (value("gemm(y, w) + x[:256]"), "ExpressionForm"),
    "27 resets the error counter": (line("error_count.zero_()"), "ExpressionForm"),
    "28 patches the timer": (top("torch.cuda.Event.elapsed_time = lambda *a: 0.001"), "TopLevel"),
    "29 reaches the driver": (top("import ctypes"), "TopLevel"),
    "30 persisting L2": (hint("persisting_l2=1"), "ScheduleHint"),
    "31 evict_last": (hint('eviction_policy="evict_last"'), "ScheduleHint"),
    "33 counts its calls": (line("calls += 1"), "StatementForm"),
    "42 leaves with code 0": (top("sys.exit(0)"), "TopLevel"),
    "43 prints PASSED": (line('print("PASSED")'), "UnknownWord"),
    "44 brings its own test": (top("@test\ndef check(y, w, x):\n    return True"), "DecoratorNeeded"),
    "45 edits the judge": (line('open("correctness.py", "w")'), "UnknownWord"),
    "46 walks the frames": (line("inspect.stack()"), "ExpressionForm"),
    "47 patches allclose": (top("torch.allclose = lambda *a, **k: True"), "TopLevel"),
    "48 calls the reference": (top("from coda_synth.tasks.linear_residual import reference"), "TopLevel"),
    "49 inherits the reference": (top("class Model(Reference): pass"), "TopLevel"),
    "50 falls back silently": (
        line("try:\n        z = gemm(y, w)\n    except Exception:\n        z = x"),
        "StatementForm",
    ),
    "51 a library call": (value("torch.mm(y, w.t()) + x"), "ExpressionForm"),
    "52 a fig leaf beside one": (value("linear(y, w) + x"), "UnknownWord"),
    "53 pasted source": (top("@triton.jit\ndef pasted(x_ptr):\n    tl.store(x_ptr, 0)"), "DecoratorNeeded"),
    "54 exec": (line('exec("import os")'), "UnknownWord"),
    "56 installs the answer": (top('__import__("os").system("pip install answer")'), "TopLevel"),
    "57 traces the parent": (line("ptrace(0)"), "UnknownWord"),
    "65 a strided view": (value("(gemm(y, w) + x).t()"), "ExpressionForm"),
    "65 another dtype": (value('cast(gemm(y, w) + x, "float32")'), "SignatureOutputs"),
    "66 claims a speedup": (top("SPEEDUP = measured(100)"), "ConstantValue"),
    "71 drops candidates by top-k": (value("topk(gemm(y, w), 64) + x"), "UnknownWord"),
    "73 a table of answers": (top("TABLE = (1.0, 2.0, 3.0)"), "ConstantValue"),
    "74 one static output": (top("OUT = empty(8192, 4096)"), "ConstantValue"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what: str) -> None:
    (old, new), rule = REFUSED[what]
    assert BASE.count(old) == 1
    with pytest.raises(ProgramError) as caught:
        read(BASE.replace(old, new), signature(task("linear_residual")))
    assert rule in [d.rule for d in caught.value.diagnostics] and all(d.line > 0 for d in caught.value.diagnostics)


# ---- L: the judge catches it -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    """A real judge whose candidate child lowers whatever an attack wants."""
    environment = {
        "TRITON_INTERPRET": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
    }
    with Judge(device="cpu", limits=Limits(check_s=2.5)) as made:
        made.interpreter.close()
        made.second_interpreter.close()
        made.interpreter, made.second_interpreter = (
            Child("compromised_worker", environment=environment, memory=900 << 20) for _ in range(2)
        )
        yield made


def attacked(judge: Judge, attack: str, name: str = "linear_residual", *, seed: int | None = None) -> Evaluation:
    text = worked_candidate(name)
    body = text[text.index('"""', 3) + 3 :]
    return judge.evaluate(Candidate(name, f'"""attack: {attack}"""{body}'), seed=seed)


INCORRECT, CRASHED = Verdict.INCORRECT, Verdict.CRASHED

# entry and attack: the verdict, and the reason's words as a pattern
CAUGHT: dict[tuple[int, str], tuple[Verdict, str]] = {
    (1, "does nothing"): (INCORRECT, "not finite"),
    (1, "returns its last output"): (INCORRECT, "too far off"),
    (2, "zeroes its inputs"): (INCORRECT, "changes its input"),
    (2, "zeroes inputs and output"): (INCORRECT, "changes its input"),
    (2, "adds to an input in place"): (INCORRECT, "changes its input 'x'"),
    (3, "answers its first call alone"): (INCORRECT, "not finite|different bits"),  # as memory is given out
    (5, "prepares once"): (INCORRECT, "too far off"),
    (13, "constant output"): (INCORRECT, "too far off"),
    (14, "zeros"): (INCORRECT, "too far off"),
    (16, "rank one"): (INCORRECT, "too far off"),
    (17, "drops the last block of K"): (INCORRECT, "too far off"),
    (17, "drops one product"): (INCORRECT, "too far off"),
    (20, "operands in fp8"): (INCORRECT, "too far off"),
    (20, "one element in fp8"): (INCORRECT, "1 of "),
    (26, "not a number"): (INCORRECT, "not finite"),
    (26, "one infinity"): (INCORRECT, "1 of "),
    (41, "leaves the ragged edge"): (INCORRECT, "rows"),
    (41, "skips a tile"): (INCORRECT, "the last 16 rows, the last 16 columns"),
    (41, "fills a tile with zeros"): (INCORRECT, "the last 16 rows"),
    (41, "the neighbour's row"): (INCORRECT, "too far off"),
    (42, "exits with code 0"): (CRASHED, "exited with code 0"),
    (42, "sys.exit"): (CRASHED, "exited with code 0"),
    (42, "sys.exit when loaded"): (CRASHED, "exited with code 0"),
    (43, "prints PASS"): (INCORRECT, "too far off"),
    (43, "floods stdout without end"): (Verdict.RUNTIME_ERROR, "File too large"),
    (43, "writes to the channel"): (CRASHED, "nonce"),
    (43, "closes the channel"): (CRASHED, "closed the channel"),
    (43, "forges an answer"): (INCORRECT, "out is missing"),
    (43, "forges tensors that are none"): (INCORRECT, "no tensors"),
    (43, "faults that are none"): (CRASHED, "an answer that is none"),
    (43, "an exception that is none"): (CRASHED, "an answer that is none"),
    (43, "claims an endless answer"): (CRASHED, "nonce"),
    (58, "hangs"): (Verdict.TIMEOUT, "within the limit"),
    (58, "claims launches without end"): (Verdict.RUNTIME_ERROR, "on purpose"),
    (59, "segfault"): (CRASHED, "SIGSEGV"),
    (59, "raises"): (Verdict.RUNTIME_ERROR, "on purpose"),
    (59, "eats memory"): (CRASHED, "memory limit"),
    (59, "a grandchild eats memory"): (CRASHED, "memory limit"),
    (59, "shared memory"): (CRASHED, "memory limit"),
    (60, "writes after the end"): (INCORRECT, "writes outside its buffer"),
    (60, "writes before the start"): (INCORRECT, "writes outside its buffer"),
    (62, "another bit each time"): (INCORRECT, r"different bits in out; \d of 4 more runs differ from another one"),
}


# Ways to die that are like others which the short run has; each costs the start of a child.
SLOW = (
    "sys.exit",
    "sys.exit when loaded",
    "closes the channel",
    "claims an endless answer",
    "segfault",  # in the short run with what comes after it: test_59
    "forges an answer",  # so is this
    "a grandchild eats memory",
    "shared memory",
)


@pytest.mark.parametrize(
    ("entry", "attack"), [pytest.param(*key, marks=[pytest.mark.slow] * (key[1] in SLOW)) for key in CAUGHT]
)
def test_caught(judge: Judge, entry: int, attack: str) -> None:
    verdict, words = CAUGHT[entry, attack]
    found = attacked(judge, attack, "linear_swiglu" if attack == "prepares once" else "linear_residual")
    said = " ".join(d.message for d in found.diagnostics)
    assert found.verdict is verdict and re.search(words, said), (found.verdict, said)
    assert found.timings == ()


# In a program of three launches: the verdict, the reason's words, and the call at fault.
LOCATED: dict[str, tuple[Verdict, str, str]] = {
    "segfault in the second kernel": (CRASHED, "SIGSEGV", "r"),
    "hangs in the second kernel": (Verdict.TIMEOUT, "within the limit", "r"),
    "an error that comes late, as a GPU tells of a bad address": (Verdict.RUNTIME_ERROR, "illegal memory", "r"),
    "the second kernel writes before its buffer": (INCORRECT, "outside its buffer 'r_rstd'", "r"),
    "the second kernel writes into the first one's buffer's end": (INCORRECT, "outside its buffer 'a_ssq'", "r"),
    "the second kernel stores nothing": (INCORRECT, "what nobody wrote", "b"),  # where it comes to light
    "the third kernel changes an input": (INCORRECT, "changes its input", "b"),
}


@pytest.mark.parametrize("attack", [pytest.param(a, marks=[pytest.mark.slow] * a.startswith("hangs")) for a in LOCATED])
def test_59_the_call_at_fault_is_named_with_its_line(judge: Judge, attack: str) -> None:
    verdict, words, call = LOCATED[attack]
    name = "residual_rmsnorm_swiglu"
    found = attacked(judge, attack, name)
    told = next((d for d in found.diagnostics if re.search(words, d.message)), None)
    assert found.verdict is verdict and told, found.diagnostics
    assert f"of the call {call} in line" in told.message, told.message
    text = worked_candidate(name)
    source = f'"""attack: {attack}"""{text[text.index(chr(34) * 3, 3) + 3 :]}'.splitlines()
    unit = {"r": "rms", "b": "gate_up"}[call]
    above = [line for line in source[: told.line] if line.startswith("def ")]
    assert above[-1].startswith(f"def {unit}(") and source[told.line - 1][told.column - 1].isalpha()


@pytest.mark.parametrize("attack", ["forges an answer", "segfault", "floods stdout without end", "zeroes its inputs"])
def test_59_the_next_candidate_does_not_notice(judge: Judge, attack: str) -> None:
    verdict, words = next(expected for (_, name), expected in CAUGHT.items() if name == attack)
    before = attacked(judge, attack)
    assert before.verdict is verdict and re.search(words, before.diagnostics[0].message), before.diagnostics
    honest = attacked(judge, "none", seed=5)
    assert honest.verdict is Verdict.PASSED, honest.diagnostics
    assert [c.error_ratio for c in attacked(judge, "none", seed=5).checks] == [c.error_ratio for c in honest.checks]


def test_43_a_flood_of_output_changes_nothing(judge: Judge) -> None:
    assert attacked(judge, "floods stdout").verdict is Verdict.PASSED
    said = attacked(judge, "writes to the channel").diagnostics[0].message
    assert "xxxx" not in said  # what one candidate prints is not another one's last words


def test_58_a_grandchild_that_left_the_group_dies_too(judge: Judge) -> None:
    before = _processes("compromised_worker")
    assert attacked(judge, "a grandchild in a session of its own").verdict is Verdict.TIMEOUT
    before |= {judge.interpreter.pid, judge.second_interpreter.pid}  # fresh: the call at fault was looked for
    deadline = time.monotonic() + 5
    while _processes("compromised_worker") - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _processes("compromised_worker") - before


def test_141_a_wrong_candidate_that_hangs_next_is_not_waited_for(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "PATIENCE_S", 0.2)
    monkeypatch.setattr(judge, "limits", Limits(check_s=30))
    assert attacked(judge, "none").verdict is Verdict.PASSED
    start = time.monotonic()
    assert attacked(judge, "is wrong, then hangs").verdict is INCORRECT
    assert time.monotonic() - start < 20


def test_142_what_the_machine_refuses_a_running_candidate_is_no_verdict(judge: Judge) -> None:
    with pytest.raises(JudgeError, match="this machine cannot run kernels: .*No space left on device"):
        attacked(judge, "finds the disk full")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """What a driver's tool says that all processes hold, in MiB of 143,771."""
    tool, said = tmp_path / "nvidia-smi", tmp_path / "held"
    tool.write_text(f"#!/bin/sh\necho $(cat {said}) MiB, 143771 MiB\n")
    tool.chmod(0o755)
    said.write_text("131072")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return said


def test_143_memory_of_a_gpu_that_others_hold_is_not_asked_of_a_candidate(
    judge: Judge, monkeypatch: pytest.MonkeyPatch, held: Path
) -> None:
    """The driver's tool is asked when the judge's own processes have given theirs back; they start again."""
    monkeypatch.setattr(judge, "gpu", Child("compromised_worker", environment=judge.interpreter.environment))
    judge.gpu.ready()
    with pytest.raises(JudgeError, match="other processes hold 131,072 of its 143,771 MiB"):
        attacked(judge, "runs out of the GPU's memory")
    assert not any(child.pid for child in (judge.gpu, *judge.references))
    held.write_text("523")
    assert attacked(judge, "runs out of the GPU's memory").verdict is Verdict.RUNTIME_ERROR


@pytest.mark.parametrize(
    ("kind", "said", "mib", "others"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "131072", True),
        ("RuntimeError", "Triton Error [CUDA]: out of memory", "131072", True),
        ("RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate", "131072", True),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 141.20 GiB", "131072", False),  # there is no more
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "523", False),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", "", False),  # the tool does not say
    ],
)
def test_143_who_says_so_and_who_holds_it(held: Path, kind: str, said: str, mib: str, others: bool) -> None:
    held.write_text(mib)
    assert out_of_memory(ChildRaised(Raised(kind, said)))
    assert bool(Judge(device="cpu").others_on_the_gpu(said)) == others


def _processes(word: str) -> set[int]:
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.add(int(pid))
        except OSError:
            pass
    return found


def test_every_attack_on_the_lowering_is_tried() -> None:
    elsewhere = {"floods stdout", "a grandchild in a session of its own", *LOCATED}
    elsewhere |= {"is wrong, then hangs", "finds the disk full", "runs out of the GPU's memory"}
    elsewhere |= {"spoils its process for good, as an illegal address does"}  # tests/test_on_device.py
    assert {attack for _, attack in CAUGHT} | elsewhere == set(ATTACKS)


# -- work avoidance


def test_5_preparations_run_anew_for_every_weight_and_are_priced_apart(judge: Judge) -> None:
    assert {f.name for f in Timing.__dataclass_fields__.values()} >= {"median_ms", "prepare_ms"}
    seeds = {c.seed for c in attacked(judge, "none", "linear_swiglu").checks if c.stage == "interpreter"}
    assert len(seeds) > 5  # fresh weights in every check


def timed(judge: Judge, attack: str) -> tuple[Measured, str, str]:
    """A small shape through the measuring code in the candidate child, on the host's clock: what was measured, what its
    bits say, and what the oracle says of the timed outputs."""
    name = "linear_residual"
    facts = judge._describe(name, "bfloat16")
    text = BASE[BASE.index('"""', 3) + 3 :]
    trial = Trial(Candidate(name, f'"""attack: {attack}"""{text}'), facts, 5, lambda _: None)
    checker = Checker(trial, judge.references, 60.0)
    case = Case("interpreter", facts.check_shapes[-2], 5, "normal", "pointer")
    bits = checker.check(judge.interpreter, case).data["bits"]
    answer = judge.interpreter.request("measure", 60.0, {**checker.run(case), "seconds": 0.05})
    found = from_data(Measured, answer.data["measured"])
    try:
        checker.check_timed(case, answer)
    except Exception as error:
        return found, unlike(found, bits), str(error)
    return found, unlike(found, bits), ""


def test_6_timed_runs_have_inputs_of_their_own_and_their_outputs_are_judged(judge: Judge) -> None:
    _, bits, oracle = timed(judge, "none")
    assert bits == oracle == ""
    _, bits, oracle = timed(judge, "returns its last output")
    assert "WrongWhenTimed" in oracle, (bits, oracle)


def test_63_integrity_is_looked_at_after_the_timed_phase(judge: Judge) -> None:
    found, bits, _ = timed(judge, "none")
    assert bits == ""
    assert "checked run" in unlike(found, {"out": 1})
    later = replace(found, reruns=({"out": 1}, *found.reruns[1:]))
    assert "untimed run" in unlike(later, found.fingerprints[0])


def test_63_memory_that_was_spoilt_is_not_used_again(judge: Judge) -> None:
    """The same question twice: what the first answer's launches did to the inputs is gone."""
    facts = judge._describe("linear_residual", "bfloat16")
    text = f'"""attack: adds to an input in place"""{BASE[BASE.index(chr(34) * 3, 3) + 3 :]}'
    checker = Checker(Trial(Candidate("linear_residual", text), facts, 5, lambda _: None), judge.references, 60.0)
    asked = checker.run(Case("interpreter", facts.check_shapes[-2], 5, "normal", "pointer"))
    first, second = (judge.interpreter.request("execute", 60.0, asked).data for _ in range(2))
    assert first == second and first["faults"][0]["tensor"] == "x" and first["faults"][0]["call"] == "a"


# -- degenerate tasks, which tests/test_lint.py gives to lint, one test each

DEGENERATE = {
    13: ("zero by construction", "constant whatever comes in"),
    14: ("a difference that cancels",),
    15: ("the sum over N",),
    16: ("the law of large numbers",),
    18: ("overflow", "overflow in fp16 alone"),
    19: ("dropout",),
    64: ("a state between calls", "an input changed in place"),
    34: ("a baseline in another precision",),
    75: ("a baseline below its own tolerance", "another dtype than declared"),
}


def test_every_degenerate_task_has_its_entry() -> None:
    assert {what for tasks in DEGENERATE.values() for what in tasks} | {"an input that nothing reads"} == set(BAD)


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_16_constants_and_rank_one_guesses_fail_every_task(name: str) -> None:
    spec = task(name)
    inputs = declared_inputs(
        spec, spec.make_inputs(spec.check_shapes[0], torch.Generator().manual_seed(3), "normal"), torch.bfloat16
    )
    oracle = bounds(spec, inputs, torch.bfloat16, 3)
    exact = mutations.exact(spec, inputs)
    for output, right in exact.items():
        for fault, wrong in mutations.output_faults(right):
            outputs = {n: v.to(oracle.outputs[n].dtype).contiguous() for n, v in {**exact, output: wrong}.items()}
            assert not judge_outputs(oracle, outputs).passed, (output, fault)


# -- precision


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("linear_residual", "gemm(y, w) + x", 'cast(gemm(y, w), "float8_e4m3") + x'),
        ("linear_residual", "gemm(y, w) + x", 'cast(gemm(y, w) + x, "float8_e4m3") * 1'),
        ("residual_rmsnorm_swiglu", '"hg": h * gamma', '"hg": cast(h * gamma, "float8_e4m3") * 1'),
    ],
)
def test_24_another_precision_than_the_tasks_is_seen(judge: Judge, name: str, old: str, new: str) -> None:
    source = worked_candidate(name)
    assert old in source
    assert judge.evaluate(Candidate(name, source.replace(old, new))).verdict in (INCORRECT, Verdict.BUILD_ERROR)


def test_25_the_tolerance_follows_dtype_and_scale() -> None:
    spec = task("linear_residual")
    made = spec.make_inputs(spec.check_shapes[0], torch.Generator().manual_seed(1), "normal")

    def allowed(dtype: torch.dtype, scale: float = 1.0) -> float:
        scaled = {n: v * scale if n != "w" else v for n, v in made.items()}
        return float(bounds(spec, scaled, dtype, 1).outputs["out"].element.median())

    assert 6 < allowed(torch.bfloat16) / allowed(torch.float16) < 11  # 8 bits against 11
    assert allowed(torch.bfloat16, 1024.0) == pytest.approx(1024 * allowed(torch.bfloat16), rel=0.05)


# -- timing


def spin(times: int) -> Lap:
    return Lap(lambda: sum(i * i for i in range(times)))


def test_35_labels_stay_with_their_contestants_whatever_their_order() -> None:
    for order in (("slow", "fast"), ("fast", "slow")):
        runs = {"slow": [spin(20_000)], "fast": [spin(2_000)]}
        found = race({name: runs[name] for name in order}, 0.3, WallClock())
        assert found["slow"].median_ms > 3 * found["fast"].median_ms


def test_35_a_contestant_against_itself_reads_one() -> None:
    for _ in range(5):  # the host's clock is shared with other programs: one quiet race is enough
        found = race({"candidate": [spin(5_000)], "baseline": [spin(5_000)]}, 0.5, WallClock())
        ours, peer = found["candidate"], found["baseline"]
        if ours.low_ms <= peer.high_ms and peer.low_ms <= ours.high_ms:
            return
    raise AssertionError((ours, peer))


@pytest.mark.gpu
def test_35_on_a_gpu_the_baseline_against_itself_reads_one() -> None:
    from coda_synth.evaluator.timing import DeviceClock

    a, b = (torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out = torch.empty_like(a)
    lap = Lap(lambda: torch.mm(a, b, out=out))
    found = race({"candidate": [lap], "baseline": [lap]}, 4.0, DeviceClock())
    ours, peer = found["candidate"], found["baseline"]
    assert ours.low_ms <= peer.high_ms and peer.low_ms <= ours.high_ms, (ours, peer)
    assert ours.median_ms / peer.median_ms == pytest.approx(1.0, abs=0.01)


def test_36_only_the_run_is_on_the_clock() -> None:
    slow_around = Lap(lambda: None, lambda: time.sleep(0.002))
    assert race({"candidate": [slow_around]}, 0.2, WallClock())["candidate"].median_ms < 0.5


@pytest.mark.parametrize("names", ["AB", "ABC"])
def test_38_contestants_take_turns_in_bursts(names: str) -> None:
    """Nobody twice in a row, each once a round, and behind every other one: what ran before heats the card."""
    order: list[str] = []
    laps = {name: [Lap(lambda name=name: order.append(name))] for name in names}
    race(laps, 0.05, WallClock())
    bursts = re.findall(r"A+|B+|C+", "".join(order))
    assert len(bursts) > 10 and {len(b) for b in bursts} == {8}
    turns = [b[0] for b in bursts]
    assert all(set(turns[i : i + len(names)]) == set(names) for i in range(0, len(turns) - 2, len(names)))
    assert {*itertools.pairwise(turns)} == {*itertools.permutations(names, 2)}


def test_32_every_set_of_inputs_lies_elsewhere_and_goes_round(judge: Judge) -> None:
    found, _, _ = timed(judge, "none")
    bits = [fingerprint["out"] for fingerprint in found.fingerprints]
    assert len(bits) == 3 == len(set(bits))  # three sets, each with outputs of its own
    seen: list[int] = []
    race({"candidate": [Lap(lambda i=i: seen.append(i)) for i in range(3)]}, 0.02, WallClock())
    assert seen[:6] == [0, 1, 2, 0, 1, 2]


def test_34_a_ratio_names_its_baseline() -> None:
    assert baselines.NAMES == ("bare_gemm", "eager", "compile")
    timing = _timing(2.0, Baseline("eager", 3.0, 2.9, 3.1))
    assert timing.ratio("eager") == 1.5 and timing.ratio("compile") is None


def test_37_one_lock_a_gpu_across_processes() -> None:
    program = """if True:
        import time
        from coda_synth.evaluator.gpu import gpu_lock
        with gpu_lock("red-team-test"):
            print("taken", flush=True)
            time.sleep(0.6)
    """
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)
    assert other.stdout is not None and other.stdout.readline() == "taken\n"
    start = time.monotonic()
    with gpu_lock("red-team-test"):
        waited = time.monotonic() - start
    other.communicate()
    assert waited > 0.3


def test_39_a_tracer_that_sees_nothing_is_said_and_the_timer_is_named(judge: Judge) -> None:
    found, _, _ = timed(judge, "none")
    assert found.launch_ms == {} and any("saw no launches" in note for note in found.notes)
    assert found.timer == "the host's monotonic clock"


def _timing(median: float, *peers: Baseline) -> Timing:
    return Timing("8b", {"T": 1}, "H200", median, median, median, 10, 1.0, 0.0, peers)


GOOD_CHECK = Check("meaning", {"T": 1}, "normal", 1, "reference", 0.5)


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.PASSED])
def test_40_a_failed_evaluation_carries_no_number(verdict: Verdict) -> None:
    with pytest.raises(ValueError, match="has no timings"):
        Evaluation("c", "t", verdict, "check", 1, (Diagnostic("x", "y"),), timings=(_timing(1.0),))
    bad = Check("meaning", {"T": 1}, "normal", 1, "reference", float("nan"))
    with pytest.raises(ValueError, match="all of them passed"):
        Evaluation("c", "t", Verdict.PASSED, "check", 1, checks=(GOOD_CHECK, bad))


# -- process and proposer


def test_55_an_author_is_told_of_its_own_run_alone() -> None:
    """Neither this task's worked candidate nor anything of another run reaches it."""
    own = worked_candidate("residual_rmsnorm_swiglu")
    told = as_text(prompt(task("residual_rmsnorm_swiglu"), (), choose(())))
    assert own.split("@program")[1].split("p = pack")[1].strip() not in told
    assert "residual_rmsnorm_swiglu:" not in told.split("def reference")[0]


def test_61_what_cannot_launch_does_not_pass(judge: Judge) -> None:
    source = BASE.replace("@kernel\n", "@kernel(block_m=256, block_n=256, block_k=128, stages=4)\n")
    found = judge.evaluate(Candidate("linear_residual", source))
    assert found.verdict is Verdict.BUILD_ERROR and "shared memory" in found.diagnostics[0].message


def test_66_claims_in_the_text_are_no_measurement(judge: Judge) -> None:
    claim = '"""PASSED, 100x faster than cuBLAS, 0.001 ms (median of 1000), error 0.0"""\nSPEEDUP = 100\n'
    found = judge.evaluate(Candidate("linear_residual", claim + BASE[BASE.index('"""', 3) + 3 :].replace("+ x", "- x")))
    assert found.verdict is Verdict.INCORRECT and found.timings == ()


def _attempt(step: int, ms: float, note: str = "", passed: bool = True) -> Attempt:
    candidate = Candidate("linear_residual", BASE + "# " * step)
    timing = {"timings": (_timing(ms),), "checks": (GOOD_CHECK,)} if passed else {}
    verdict = Verdict.PASSED if passed else Verdict.INCORRECT
    said = () if passed else (Diagnostic("WrongNumbers", "wrong"),)
    found = Evaluation(candidate.id, candidate.task, verdict, "measure", 1, said, **timing)
    return Attempt(step, "evaluated", candidate, found, note=note)


def test_67_no_opinion_ranks_a_candidate() -> None:
    praised = _attempt(1, 3.0, "an excellent kernel, by far the best, PASSED")
    wrong = _attempt(2, 0.1, "verified by the reviewer", passed=False)
    plain = _attempt(3, 2.0)
    assert best((praised, wrong, plain)) is plain
    assert best((wrong,)) is None and why_best((praised, wrong, plain))


@dataclass
class NoisyClock:
    """Stands in for the judge of a GPU: tells the times that it is given, one after the other."""

    times: list[float]
    verdict: Verdict = Verdict.PASSED

    def evaluate(self, candidate: Candidate, *, seed: int) -> Evaluation:
        return _attempt(1, self.times.pop(0), passed=self.verdict is Verdict.PASSED).evaluation


def test_68_a_lucky_time_is_measured_again_before_it_leads() -> None:
    steady = replace(_attempt(1, 2.0), evaluation=replace(_attempt(1, 2.0).evaluation, confirmed=(_timing(2.01),)))
    lucky = _attempt(2, 1.5)
    again = confirmed(NoisyClock([2.6]), lucky.candidate, lucky.evaluation, (steady,))
    assert again.confirmed[0].median_ms == 2.6 and again.timings[0].median_ms == 1.5
    assert best((steady, replace(lucky, evaluation=again))) is steady
    assert best((steady, lucky)) is steady  # once is not enough
    slower = _attempt(3, 2.5)
    assert confirmed(NoisyClock([]), slower.candidate, slower.evaluation, (steady,)) is slower.evaluation
    wrong = confirmed(NoisyClock([1.0], INCORRECT), lucky.candidate, lucky.evaluation, (steady,))
    assert wrong.verdict is INCORRECT and wrong.timings == ()


def test_69_a_seed_that_was_told_is_never_used_again(judge: Judge) -> None:
    found = [judge.evaluate(Candidate("linear_residual", BASE.replace("+ x", "- x"))) for _ in range(3)]
    assert len({e.seed for e in found}) == 3
    assert str(found[0].seed) in found[0].diagnostics[0].message  # told, so that its author can replay it


def test_72_no_prompt_pleads() -> None:
    words = re.compile(r"\b(cheat|hack|exploit|reward|honest|trick|game the)", re.I)
    told = as_text(prompt(task("linear_swiglu"), (), choose(())))
    assert not words.search(told)


def test_73_a_text_has_a_size() -> None:
    with pytest.raises(ProgramError, match="TextTooLarge"):
        read(BASE + "# " + "x" * 70_000)


def test_76_a_result_states_its_shape(judge: Judge) -> None:
    found = attacked(judge, "none")
    assert all(isinstance(m, Modelled) and m.shape and m.sizes and m.device for m in found.modelled)
    assert {m.shape for m in found.modelled} == set(task("linear_residual").time_shapes)


# ---- beyond the catalogue: what was tried against this judge, and worked --------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        'where(index("N") > 500, 1.0, 0.0)',
        'where(index("M") > 500, 1.0, 0.0)',
        'where(x * 0 + size("N") > 1000, 1.0, 0.0)',
        'where(x * 0 + size("K") > 1000, 1.0, 0.0)',
    ],
)
def test_106_no_dim_is_long_in_measurements_alone(judge: Judge, wrong: str) -> None:
    found = judge.evaluate(
        Candidate("linear_residual", BASE.replace(RETURN, f'return {{"out": gemm(y, w) + x + {wrong}}}'))
    )
    assert found.verdict is Verdict.INCORRECT and found.checks[-1].stage == "meaning"


@pytest.mark.parametrize("odd", ["\\u2028def f(): pass", "a\\x85b\\x0cc\\x1ed", "a\\rimport os\\r", "\\udc80", "a\\0b"])
def test_107_no_character_of_a_docstring_reaches_the_generated_code(judge: Judge, odd: str) -> None:
    found = judge.evaluate(Candidate("linear_residual", f"'{odd}'{BASE[BASE.index(chr(34) * 3, 3) + 3 :]}"))
    assert found.verdict is Verdict.PASSED, found.diagnostics


@pytest.mark.parametrize("name", ["processors", "relu_g", "launch", "T_size"])
def test_108_no_name_of_a_candidate_is_one_of_the_generated_module(judge: Judge, name: str) -> None:
    found = judge.evaluate(Candidate("linear_residual", BASE.replace("project", name)))
    assert found.verdict is Verdict.PASSED, found.diagnostics


def test_109_two_tensors_never_share_a_name(judge: Judge) -> None:
    source = worked_candidate("residual_rmsnorm_swiglu")
    for old, new in (("b = gate_up", "x = gate_up"), ("b.act", "x.act"), ("p = pack", "w = pack"), ("p.w", "w.gate")):
        source = source.replace(old, new)
    source = source.replace('return {"w": inter', 'return {"gate": inter')  # the tensor w_gate is an input too
    found = judge.evaluate(Candidate("residual_rmsnorm_swiglu", source))
    assert found.verdict in (Verdict.PASSED, Verdict.REJECTED), found.diagnostics


def test_110_a_folder_cannot_replace_parts_of_the_judge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit(0)")
    (tmp_path / "torch.py").write_text("raise SystemExit(0)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with Judge(device="cpu") as there:
        assert there.evaluate(Candidate("linear_residual", BASE)).verdict is Verdict.PASSED


def test_121_the_rows_of_a_full_shape_that_are_looked_at_are_the_seeds_secret(judge: Judge) -> None:
    facts = judge._describe("linear_residual", "bfloat16")
    sizes = facts.headline[1]
    found = [sample(facts, sizes, seed) for seed in range(40)]
    assert found[0] == sample(facts, sizes, 0) != found[1]
    seen = {row for rows in found for row in rows or ()}
    assert len(seen) > 0.6 * sizes["T"]  # no row is safe for long
    for rows in found:
        assert rows is not None and len(rows) < 280 and {0, sizes["T"] - 1} <= set(rows)
        assert max(b - a for a, b in itertools.pairwise(rows)) < 2 * sizes["T"] // 256
        assert len({row % 64 for row in rows}) > 50  # places in a tile
    assert sample(facts, {**sizes, "T": 200}, 1) is None


def test_122_what_mixes_rows_is_compared_at_full_height(judge: Judge) -> None:
    name = "linear_backward"
    facts = judge._describe(name, "bfloat16")
    trial = Trial(Candidate(name, worked_candidate(name)), facts, 5, lambda _: None, environment={"sms": "132"})
    judge._plan(trial)
    few = trial.device_sizes["even"]
    wide, high = _cut_cases(trial, few)
    assert wide.rows is high.rows is None
    headline = facts.headline[1]
    assert wide.sizes == {**headline, "T": 512} and high.sizes["T"] == headline["T"]
    assert all(high.sizes[symbol] < headline[symbol] for symbol in headline if symbol != "T")
    assert _cut_cases(replace(trial, facts=judge._describe("linear_swiglu", "bfloat16")), few) == []


@pytest.mark.slow
def test_123_a_reference_that_dies_when_it_is_asked_ahead_is_no_fault_of_the_candidate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(references, "cores", lambda: 16)
    plain, killed = Child._write, []

    def dying(child: Child, pieces: list[Any], deadline: float) -> None:
        if b'"op": "expect"' in bytes(pieces[1][:40]) and not killed:
            killed.append(child.pid)
            assert child.pid
            os.kill(child.pid, signal.SIGKILL)
            time.sleep(0.2)
        plain(child, pieces, deadline)

    with Judge(device="cpu") as wide:
        monkeypatch.setattr(Child, "_write", dying)
        found = wide.evaluate(Candidate("linear_residual", worked_candidate("linear_residual")), seed=1)
    assert killed and found.verdict is Verdict.PASSED, found.diagnostics


SOUND = Measured(
    {"candidate": Sample(2.0, 1.9, 2.1, 40), "eager": Sample(3.0, 2.9, 3.1, 40)},
    {},
    {"a": (1.5,), "r": (0.0,)},
    0.1,
    ({"y": 1}, {"y": 2}),
    ({"y": 1}, {"y": 2}),
)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "changed",
    [
        {"samples": {}},
        {"samples": {"candidate": Sample(NAN, NAN, NAN, 40)}},
        {"samples": {"candidate": Sample(INF, 1.0, INF, 40)}},
        {"samples": {"candidate": Sample(2.0, 2.2, 1.8, 40)}},
        {"samples": {"candidate": Sample(0.0, 0.0, 0.0, 40)}},
        {"samples": {"candidate": Sample(2.0, 1.9, 2.1, -4)}},
        {"samples": {**SOUND.samples, "eager": Sample(NAN, 1.0, 2.0, 9)}},
        {"graph": {"bare_gemm": Sample(1.0, 1.0, 1.0, 9)}},
        {"launch_ms": {"a": ()}},
        {"launch_ms": {"a": (NAN,)}},
        {"launch_ms": {"a": (-1.0,)}},
        {"prepare_ms": INF},
        {"between_ms": NAN},
        {"fingerprints": ()},
        {"reruns": ({"y": 1},)},
        {"notes": ("x" * (1 << 20),)},
    ],
    ids=str,
)
def test_124_a_measurement_that_is_none_is_no_answer(changed: dict[str, Any]) -> None:
    assert SOUND.fault() == "" and replace(SOUND, **changed).fault()
    parts = Parts({"a": 1.0}, {"a": 0.0}, 4e12, 8e14)
    assert parts.fault() == ""
    wrong: list[dict[str, Any]] = [{"bare_ms": {"a": 0.0}}, {"copy_bytes_per_s": 0.0}, {"notes": ("x" * 99999,)}]
    for changed in (*wrong, {"matmul_flops_per_s": NAN}):
        assert replace(parts, **changed).fault()


def test_125_every_reference_gives_its_memory_back_before_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(references, "cores", lambda: 12)
    asked: list[tuple[int | None, str]] = []
    plain = Child.request

    def seen(child: Child, op: str, *rest: Any) -> Any:
        asked.append((child.pid, op))
        return plain(child, op, *rest)

    with Judge(device="cpu") as wide:
        facts = wide._describe("linear_residual", "bfloat16")
        monkeypatch.setattr(Child, "request", seen)
        wide.release("linear_residual", "bfloat16", Case("device", facts.check_shapes[0], 1, "normal", "auto"))
        assert {pid for pid, op in asked if op == "release"} == {child.pid for child in wide.references}
        assert len(asked) == len(list(wide.references)) > 1


# ---- the honest suite ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linear_residual", "linear_swiglu"])  # the others: tests/test_judge.py
def test_70_an_honest_candidate_passes(judge: Judge, name: str) -> None:
    seed = random.SystemRandom().randrange(1 << 31)
    found = attacked(judge, "none", name, seed=seed)
    assert found.verdict is Verdict.PASSED, (seed, found.diagnostics)


@pytest.mark.slow
@pytest.mark.parametrize("name", task_names())
def test_70_every_worked_candidate_passes_on_fresh_seeds(judge: Judge, name: str) -> None:
    judge.limits = Limits()
    for _ in range(4):
        found = attacked(judge, "none", name)
        assert found.verdict is Verdict.PASSED, (found.seed, found.diagnostics)


# ---- the page --------------------------------------------------------------------------------------------------------


def test_the_page_lists_every_entry_with_its_test() -> None:
    page = (ROOT / "docs" / "red-team.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \| ([IL])[^|]* \| ([^|]+) \|$", page, re.M)
    assert [int(number) for number, *_ in rows] == list(range(1, 77))
    names = set(globals())
    for number, _, kind, tests in rows:
        for told in re.findall(r"`([^`]+)`", tests):
            assert _exists(told, int(number), names), (number, told)
        assert "`" in tests, number
        assert kind == "L" or any(key.split()[0] == number for key in REFUSED), number


def _exists(told: str, number: int, names: set[str]) -> bool:
    if told == "refused":
        return any(key.split()[0] == str(number) for key in REFUSED)
    if told == "caught":
        return any(entry == number for entry, _ in CAUGHT)
    if told == "degenerate":
        return number in DEGENERATE
    return any(name.startswith(f"test_{told}") for name in names)
