"""What a second evaluation finds ready, and how large inputs are drawn: all of it without a GPU."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
import torch
from coda_synth.evaluator import drawing, inputs, oracle, stopwatch
from coda_synth.evaluator.baselines import Peers, references
from coda_synth.evaluator.checking import Checker
from coda_synth.evaluator.drawing import Drawing
from coda_synth.evaluator.evaluation import Candidate, Verdict
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.inputs import Inputs, make_inputs
from coda_synth.evaluator.judge import Judge
from coda_synth.evaluator.serial import from_data
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.trial import Trial
from coda_synth.tasks.catalog import task, task_names, worked_candidate
from coda_synth.tasks.spec import STYLES

# ---- inputs ----------------------------------------------------------------------------------------------------------


def splitmix64(key: int, count: int) -> np.ndarray:
    """As its author published it, in numpy's unsigned integers."""
    with np.errstate(over="ignore"):
        word = (np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return word ^ (word >> np.uint64(31))


def test_a_large_draw_is_what_another_implementation_makes_of_key_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_CHUNK", 1000)  # so that it is put together from parts
    words, key = splitmix64(1234567, 5000), 1234567
    even = torch.tensor((words >> 40) * 2.0**-24, dtype=torch.float32)
    assert torch.equal(drawing.uniform((5000,), key, "cpu"), even)
    whole = torch.tensor((words >> 32 & 0x7FFFFFFF).astype(np.int64) % 7 - 3).view(50, 100)
    assert torch.equal(drawing.integers(-3, 4, (50, 100), key, "cpu"), whole)
    knots = drawing._normal_knots().numpy()
    place, between = (words >> 48).astype(int), ((words >> 24 & 0xFFFF) * 2.0**-16).astype(np.float32)
    normal = (knots[place + 1] - knots[place]) * between + knots[place]
    assert torch.equal(drawing.normal((5000,), key, "cpu"), torch.from_numpy(normal))


def test_large_draws_have_the_moments_of_their_distributions() -> None:
    normal = drawing.normal((1 << 20,), 5, "cpu").double()
    assert abs(normal.mean()) < 0.005 and abs(normal.std() - 1) < 0.005 and abs(normal.pow(4).mean() - 3) < 0.05
    assert abs((normal[1:] * normal[:-1]).mean()) < 0.005
    waits = drawing.exponential((1 << 20,), 6, "cpu").double()
    assert abs(waits.mean() - 1) < 0.005 and abs(waits.std() - 1) < 0.01 and waits.min() >= 0
    assert not torch.equal(drawing.normal((99,), 5, "cpu"), drawing.normal((99,), 7, "cpu"))


@pytest.mark.parametrize("name", task_names())
def test_every_task_draws_its_inputs_that_way(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = task(name)
    sizes = spec.check_shapes[1]
    monkeypatch.setattr(drawing, "LARGE", 1 << 10)
    for style in STYLES:
        with Drawing("cpu"):
            made, again = (spec.make_inputs(sizes, torch.Generator().manual_seed(3), style) for _ in range(2))
        plain = spec.make_inputs(sizes, torch.Generator().manual_seed(3), style)
        for entry, value in plain.items():
            if isinstance(value, torch.Tensor):
                assert made[entry].shape == value.shape and made[entry].dtype == value.dtype, (style, entry)
                assert made[entry].isfinite().all() and torch.equal(made[entry], again[entry]), (style, entry)


def test_a_small_draw_is_the_generators_own_and_a_large_one_takes_a_key_of_it() -> None:
    with Drawing("cpu"):
        inside = torch.randn((3, 5), generator=torch.Generator().manual_seed(1))
        generator = torch.Generator().manual_seed(1)
        large = torch.randn((1024, 1024), generator=generator)
    assert torch.equal(inside, torch.randn((3, 5), generator=torch.Generator().manual_seed(1)))
    other = torch.Generator().manual_seed(1)
    key = int(torch.randint(0, 1 << 62, (), generator=other))
    assert torch.equal(large, drawing.normal((1024, 1024), key, "cpu"))
    assert torch.equal(generator.get_state(), other.get_state())


def test_the_oracle_of_a_device_draws_the_inputs_that_the_candidate_gets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "LARGE", 1 << 10)
    monkeypatch.setattr(drawing, "LARGE", 1 << 10)
    spec = task("linear_residual")
    for stage in ("meaning", "interpreter", "device"):
        case = Case(stage, spec.check_shapes[1], 3, "normal", "auto")
        own = from_data(Case, json.loads(oracle._inputs_key(case)))
        made, exact = (make_inputs(spec, signature(spec), c) for c in (case, own))
        assert all(torch.equal(torch.as_tensor(made[n]), torch.as_tensor(exact[n])) for n in made), stage


def test_what_is_small_moves_to_what_lies_on_the_device() -> None:
    with Drawing("meta"):  # a device without values, where only places and shapes can be right
        large = torch.zeros((1024, 1024))
        gain = torch.ones(1024)
        assert (large.device.type, gain.device.type) == ("meta", "cpu")
        assert (large * gain).device.type == torch.stack((large, large * 2)).device.type == "meta"


# ---- baselines -------------------------------------------------------------------------------------------------------


def drawn(name: str, seed: int = 5, **more: int) -> Inputs:
    spec = task(name)
    sizes = {**spec.check_shapes[0], **more}
    return make_inputs(spec, signature(spec), Case("device", sizes, seed, "normal", "auto"))


class Compiler:
    """Stands in for the code generator behind torch.compile, and counts what it is given."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


def test_a_compiled_baseline_is_found_again_whatever_the_values() -> None:
    compiler, spec = Compiler(), task("linear_swiglu")
    peers = Peers(compiler)
    for seed in (1, 2, 3):
        found, notes = references(spec, [drawn("linear_swiglu", seed), drawn("linear_swiglu", seed + 10)], peers)
        assert set(found) == {"eager", "compile"} and notes == []
        for eager, compiled in zip(found["eager"], found["compile"], strict=True):
            torch.testing.assert_close(eager()["act"], compiled()["act"])
    assert (compiler.graphs, peers.made) == (1, 1)


def test_no_number_of_shapes_makes_a_compiled_baseline_eager() -> None:
    compiler, spec = Compiler(), task("linear_residual")
    peers = Peers(compiler, kept=12)
    shapes = [drawn("linear_residual", T=40 + i) for i in range(14)]
    for own in shapes:
        references(spec, [own], peers)
    assert compiler.graphs == peers.made == 14
    references(spec, [shapes[-1]], peers)
    assert compiler.graphs == peers.made == 14
    references(spec, [shapes[0]], peers)  # the one that was used longest ago is gone
    assert compiler.graphs == peers.made == 15


def test_a_kept_baseline_holds_no_tensor_of_whoever_was_timed() -> None:
    import gc
    import weakref

    peers, inputs = Peers(Compiler()), drawn("linear_residual")
    gone = [weakref.ref(value) for value in inputs.values() if isinstance(value, torch.Tensor)]
    references(task("linear_residual"), [inputs], peers)
    del inputs
    gc.collect()
    assert peers.made == 1 and all(held() is None for held in gone)


def test_a_baseline_that_does_not_run_is_a_note_and_is_tried_again() -> None:
    def broken(graph: Any, inputs: Any) -> Any:
        raise RuntimeError("no compiler here")

    peers = Peers(broken)
    for _ in range(2):
        found, notes = references(task("linear_residual"), [drawn("linear_residual")], peers)
        assert set(found) == {"eager"} and "the baseline compile is missing" in notes[0]
    assert peers.made == 2


# ---- through the judge -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def judge() -> Any:
    with Judge(device="cpu", seed=7) as made:
        yield made


def test_the_second_evaluation_of_a_shape_reuses_the_peers_on_new_inputs(judge: Judge) -> None:
    name = "linear_residual"
    facts = judge._describe(name, "bfloat16")
    made, bits = [], []
    for seed in (5, 6):
        trial = Trial(Candidate(name, f"{worked_candidate(name)}\n# {seed}\n"), facts, seed, lambda _: None)
        checker = Checker(trial, judge.references, 60.0)
        case = Case("interpreter", facts.check_shapes[-2], seed, "normal", "pointer")
        bits.append(checker.check(judge.interpreter, case).data["bits"])
        assert any("eager has" in line for line in checker.peers(judge.interpreter, case))
        answer = judge.interpreter.request("measure", 60.0, {**checker.run(case), "seconds": 0.05})
        made.append(answer.data["made"])
    assert made == [1, 1] and bits[0] != bits[1]


def test_an_evaluation_says_where_its_time_went(judge: Judge) -> None:
    start = time.monotonic()
    found = judge.evaluate(Candidate("linear_residual", worked_candidate("linear_residual")))
    took = time.monotonic() - start
    assert found.verdict is Verdict.PASSED
    steps = {"build read", "build plan", "build build", "reference oracle", "reference compare", "interpreter run"}
    assert steps <= set(found.stages), found.stages
    busy = {child: sum(s for n, s in found.stages.items() if n.startswith(child)) for child in ("build", "reference")}
    assert all(0 <= seconds <= took + 0.1 for seconds in busy.values())


def test_a_step_inside_a_step_counts_once() -> None:
    stopwatch.drained()
    with stopwatch.stage("outer"):
        with stopwatch.stage("inner"):
            time.sleep(0.02)
        stopwatch.spend("told", 0.005)
    found = stopwatch.drained()
    assert found["inner"] >= 0.02 and found["told"] == 0.005 and found["outer"] < 0.015
    assert stopwatch.drained() == {}
