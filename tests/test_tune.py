"""The tuner: what is proposed, what builds prune, who wins a race, what is kept, and what comes out as text."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from coda_synth.agent import cli_failure, tune_cache, workbench
from coda_synth.agent.doctor import _tuned
from coda_synth.agent.tune import NEIGHBOURS, SHAPES, KernelResult, Search, Try
from coda_synth.agent.tuner import with_hints
from coda_synth.agent.workbench import Workbench
from coda_synth.coda_api.canonical import canonical
from coda_synth.coda_api.devices import device
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import Schedule
from coda_synth.coda_api.schedule_space import fits, hints_of, neighbours, passes, shapes
from coda_synth.evaluator.child import Child
from coda_synth.evaluator.compilers import cores
from coda_synth.evaluator.facts import Case
from coda_synth.evaluator.measured import Sample
from coda_synth.evaluator.oracle import facts_of
from coda_synth.evaluator.proposed import Built, Described, Proposal, TunedKernel
from coda_synth.evaluator.signature import signature
from coda_synth.evaluator.tuning import Asked, built, kernels, proposals
from coda_synth.tasks.catalog import task, worked_candidate

from tests.test_cli import cli, refused

H200, A100 = device("H200"), device("A100")
ROOT = Path(__file__).resolve().parent.parent


def asked(name: str, on: str = "H200") -> Asked:
    typed = signature(task(name))
    return Asked(read(worked_candidate(name), typed), typed, next(iter(task(name).time_shapes.values())), device(on))


def as_written(of: Asked) -> dict[str, Schedule]:
    return {call: s for kernel in kernels(of) for call, s in kernel.schedules.items()}


# -- what is proposed


def test_shapes_hold_every_mainloop_and_fit_the_device() -> None:
    found = shapes(H200)
    assert {s.mainloop for s in found} == {"hopper", "pingpong", "portable"} and len(set(found)) == len(found)
    assert all(fits(s, H200) for s in found)
    assert {s.mainloop for s in shapes(A100)} == {"auto"} and all(s.operand_bytes() <= 166_912 for s in shapes(A100))
    assert Schedule(block_n=128, stages=5, mainloop="pingpong") in found and Schedule(mainloop="hopper") in found


def test_neighbours_differ_in_one_hint() -> None:
    start = Schedule(mainloop="hopper")
    found = neighbours(start, H200)
    changed = [[n for n in Schedule.__slots__ if getattr(s, n) != getattr(start, n)] for s in found]
    assert all(len(names) == 1 for names in changed)
    assert {names[0] for names in changed} == {
        "stages",
        "slice_n",
        "group_m",
        "block_k",
        "split_k",
    }  # 4 warps cannot hold 128 rows
    assert not any(s.slice_n > 64 for s in neighbours(Schedule(block_n=64), H200))


def test_hints_of_a_default_schedule_are_not_empty() -> None:
    """A kernel without hints has its schedule chosen for it, which may be another one."""
    assert hints_of(Schedule()) == {"block_m": 128, "block_n": 256, "stages": 3}
    for schedule in (*shapes(H200), *passes()):
        assert Schedule().with_hints(hints_of(schedule)) == schedule


def test_proposals_are_ranked_by_the_model_lower_and_are_new() -> None:
    of = asked("linear_swiglu")
    now = as_written(of)
    found = proposals(of, "gate_up", now, None, list(now.values()), SHAPES, 0)
    assert len(found) == SHAPES and len({p.schedule for p in found}) == SHAPES
    times = [float(f"{p.modelled_ms:.4g}") for p in found]
    assert times == sorted(times) and set(now.values()).isdisjoint({p.schedule for p in found})
    texts = {of.lowered(dict.fromkeys(now, p.schedule)).source for p in found}
    assert len(texts) == SHAPES


def test_the_seed_orders_what_the_model_cannot_tell_apart() -> None:
    of = asked("linear_swiglu")
    now = as_written(of)

    def order(seed: int) -> list[Schedule]:
        return [p.schedule for p in proposals(of, "gate_up", now, now["a"], [now["a"]], NEIGHBOURS, seed)]

    assert order(1) == order(1) and order(1) != order(2)


def test_a_group_that_does_not_fit_a_tile_is_not_proposed() -> None:
    of = asked("linear_rope")
    now = as_written(of)
    found = proposals(of, "rotary", now, None, [], 100, 0)
    assert found and all(p.schedule.block_n >= 128 for p in found)  # heads of 128 columns


def test_kernels_come_with_their_calls_the_longest_first() -> None:
    found = kernels(asked("linear_backward"))
    assert [k.name for k in found][-1] == "columns" and sum(k.share for k in found) < 1.0
    assert [k.calls for k in kernels(asked("linear_rope"))] == [("q", "k"), ("v",)]


def test_few_tiles_are_proposed_in_pieces() -> None:
    of = replace(asked("linear_residual"), sizes={"T": 16, "D": 4096, "K": 14336})
    found = proposals(of, "project", as_written(of), None, [], SHAPES, 0)
    assert any(p.schedule.split_k > 1 for p in found[:3]) and all(p.schedule.block_m <= 64 for p in found[:3])
    many = proposals(asked("linear_residual"), "project", as_written(of), None, [], SHAPES, 0)
    assert all(p.schedule.split_k == 1 for p in many)


def test_a_kernel_without_a_hopper_text_is_proposed_portable_schedules_alone() -> None:
    """Hopper kernels multiply 16-bit operands."""
    half = signature(task("linear_nt"))
    inputs, outputs = (tuple(replace(s, dtype="float32") for s in specs) for specs in (half.inputs, half.outputs))
    typed = replace(half, dtype="float32", inputs=inputs, outputs=outputs)
    of = replace(asked("linear_nt"), program=read(worked_candidate("linear_nt"), typed), signature=typed)
    found = proposals(of, "product", as_written(of), None, [], 100, 0)
    assert found and {p.schedule.mainloop for p in found} == {"portable"}
    assert all(p.schedule.operand_bytes(4) <= H200.shared_bytes for p in found)


# -- what builds prune


def test_a_build_tells_registers_and_shared_memory_or_what_is_wrong() -> None:
    of = asked("linear_residual")
    (call,) = (c for k in kernels(of) for c in k.calls)
    good = built(of, "project", {call: Schedule(block_n=128, mainloop="portable")})
    assert not good.problem and good.registers > 50 and 0 < good.shared_bytes <= H200.shared_bytes
    over = built(of, "project", {call: Schedule(block_m=256, block_n=256, stages=6, mainloop="portable")})
    assert "shared memory" in over.problem or "does not compile" in over.problem
    refused = built(of, "project", {call: Schedule(stages=1, mainloop="hopper")})
    assert "two stages" in refused.problem


# -- the search, on a bench whose times follow a rule


@dataclass
class Ruled:
    """Proposes as the real bench does, builds nothing, and measures what `ms` says; None does not launch."""

    of: Asked
    ms: object = None
    builds: list[Schedule] = field(default_factory=list)
    races: list[list[str]] = field(default_factory=list)

    def propose(self, kernel, now, around, known, count, seed) -> list[Proposal]:  # type: ignore[no-untyped-def]
        return proposals(self.of, kernel, now, around, list(known), count, seed)

    def build(self, kernel: str, asked: Sequence[Mapping[str, Schedule]], deadline: float) -> list[Built | None]:
        (call, *_) = self.of.calls_of(kernel)
        self.builds += [s[call.name] for s in asked]
        late = time.monotonic() > deadline
        return [None if late else Built(self.of.modelled_ms(s), 168, 0, 200_000) for s in asked]

    def race(self, contestants: Mapping[str, Mapping[str, Schedule]], seconds: float) -> dict[str, Sample]:
        self.races.append(list(contestants))
        if self.ms is None:
            return {}
        times = {name: self.ms(s) for name, s in contestants.items()}  # type: ignore[operator]
        return {name: Sample(t, t * 0.999, t * 1.001, 50) for name, t in times.items() if t}


def searched(name: str, ms: object = None, seed: int = 0, seconds: float = 60.0) -> tuple[Ruled, Search, KernelResult]:
    bench = Ruled(asked(name), ms)
    search = Search(bench, seed, time.monotonic() + seconds)
    return bench, search, search.run(kernels(bench.of))[0]


def test_the_same_seed_tries_and_races_in_the_same_order() -> None:
    first, second, other = (searched("linear_residual", lambda s: 1.0, seed)[0] for seed in (3, 3, 4))
    assert first.builds == second.builds and first.races == second.races
    assert first.races != other.races


def test_the_measured_best_wins_and_the_gap_of_the_models_pick_is_told() -> None:
    def ms(schedules: Mapping[str, Schedule]) -> float:
        s = schedules["a"]
        return 1.0 - 0.1 * (s.mainloop == "hopper") - 0.1 * (s.group_m == 16)

    bench, search, found = searched("linear_swiglu", ms)  # which the model gives to ping-pong
    assert (found.best.schedule.mainloop, found.best.schedule.group_m) == ("hopper", 16)
    assert found.pick.schedule.mainloop == "pingpong" and found.gap == pytest.approx(1.0 / 0.8 - 1)
    assert search.complete and len(bench.races) == 2 and found.hints["group_m"] == 16


def test_what_is_not_faster_beyond_its_interval_changes_nothing() -> None:
    _, _, found = searched("linear_swiglu", lambda s: 1.0 - 0.001 * (s["a"].group_m == 16))
    assert found.best.round == 0 and found.hints == {}
    assert found.gap is not None and 0 <= found.gap < 0.002


def test_what_does_not_launch_cannot_win() -> None:
    _, _, found = searched("linear_swiglu", lambda s: None if s["a"].mainloop == "hopper" else 1.0)
    assert all("does not run" in t.built.problem for t in found.tries if t.schedule.mainloop == "hopper")
    assert found.best.sample is not None


def test_a_written_schedule_that_has_no_text_is_told(tmp_path: Path) -> None:
    hinted = with_hints(
        worked_candidate("linear_residual"), {"project": {"mainloop": "hopper", "block_n": 256, "stages": 8}}
    )
    (tmp_path / "hinted.coda").write_text(hinted)
    done = cli("tune", "hinted.coda", "--task", "linear_residual", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert done.returncode == 1 and said["verdict"] == "BUILD_ERROR" and "do not fit beside" in str(said["diagnostics"])


def test_without_a_gpu_the_model_ranks_and_no_gap_is_told() -> None:
    slow = with_hints(worked_candidate("residual_rmsnorm"), {"out_proj": {"block_m": 64, "block_n": 64}})
    of = asked("residual_rmsnorm")
    search = Search(Ruled(replace(of, program=read(slow, of.signature))), 0, time.monotonic() + 60)
    (found,) = search.run(kernels(search.bench.of))
    assert found.gap is None and all(t.sample is None for t in found.tries) and search.complete
    assert found.best.built.modelled_ms == min(t.built.modelled_ms for t in found.tries)
    assert found.pick == found.best and found.best.round > 0


def test_what_the_model_calls_faster_within_its_error_changes_nothing() -> None:
    _, _, found = searched("residual_rmsnorm")
    least = min(t.built.modelled_ms for t in found.tries)
    assert 0.98 * found.best.built.modelled_ms < least < found.best.built.modelled_ms and found.hints == {}


def test_a_spent_budget_leaves_the_schedule_as_written() -> None:
    bench, search, found = searched("linear_swiglu", lambda s: 1.0, seconds=-1)
    assert [t.round for t in found.tries] == [0] and not search.complete and found.hints == {}
    assert bench.races == []


def test_kernels_are_tuned_beside_the_best_of_those_before() -> None:
    bench = Ruled(asked("linear_rope"), lambda s: 1.0 - 0.1 * (s["q"].group_m == 16) - 0.1 * (s["v"].group_m == 4))
    first, second = Search(bench, 0, time.monotonic() + 60).run(kernels(bench.of))
    assert first.hints["group_m"] == 16 and second.hints["group_m"] == 4
    assert second.best.sample is not None and second.best.sample.median_ms == pytest.approx(0.8)


# -- the race


def test_a_race_never_adds_to_a_live_buffer() -> None:
    """linear_backward adds to dw: every run of a race starts from the same dw, whoever ran before it."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    program = [sys.executable, str(ROOT / "tests" / "interpreted_contest.py")]
    done = subprocess.run(program, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("times inputs were made") == 1 and found.pop("kept") == ["dw"]
    assert found.pop("order") == ["64", "32"] and all(found.values()), found


def interpreting(name: str) -> Workbench:
    facts = facts_of(task(name), "bfloat16")
    sizes = min(facts.check_shapes, key=lambda sizes: sum(sizes.values()))
    case = Case("interpreter", sizes, 5, "normal", "pointer", {}, 2)
    runner = Child("coda_synth.evaluator.worker", environment={"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""})
    return Workbench(worked_candidate(name), facts, sizes, "H200", case, runner)


@pytest.mark.parametrize("harmless", [workbench._HARMLESS, ()])
def test_a_race_in_the_device_worker_leaves_out_what_does_not_run(
    harmless: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel without a GEMM has no Hopper text. Where that is taken for a failure after which the worker cannot be
    trusted, the others enter a new one."""
    monkeypatch.setattr(workbench, "_HARMLESS", harmless)
    with interpreting("rope_backward") as bench:
        whole = Schedule(block_m=16, block_n=128, warps=4)
        tiles = {"a": whole, "hopper": replace(whole, mainloop="hopper"), "b": replace(whole, block_m=32)}
        found = bench.race({name: {"a": tile} for name, tile in tiles.items()}, 0.1)
        assert bench.runner and bench.runner.pid
    assert list(found) == ["a", "b"] and all(0 < s.low_ms <= s.median_ms <= s.high_ms for s in found.values())
    assert len(bench.notes) == 1 and bench.notes[0].startswith("hopper does not run: LoweringError")


# -- the workbench: workers of their own


def test_every_core_builds_and_a_deadline_ends_it() -> None:
    facts = facts_of(task("linear_residual"), "bfloat16")
    source, sizes = worked_candidate("linear_residual"), facts.headline[1]
    with Workbench(source, facts, sizes, "H200", Case("device", sizes, 0, "normal", "auto")) as bench:
        described = bench.describe()
        (kernel,) = described.kernels
        (call,) = kernel.calls
        wanted = [{call: Schedule(block_n=128, stages=n, mainloop="portable")} for n in (3, 4)]
        wanted += [{call: Schedule(stages=1, mainloop="hopper")}]
        found = bench.build(kernel.name, wanted, math.inf)
        assert [b.problem == "" for b in found if b] == [True, True, False]
        assert found[0] and found[1] and found[0].shared_bytes < found[1].shared_bytes
        assert len(bench._workers) == min(3, cores())
        assert bench.build(kernel.name, wanted, time.monotonic() - 1) == [None, None, None]
        assert bench.race({"a": {}}, 1.0) == {}  # no GPU
    assert not any(worker.pid for worker in bench._workers)


def test_a_text_that_the_language_refuses_is_described_by_what_is_wrong() -> None:
    facts = facts_of(task("linear_residual"), "bfloat16")
    bad = worked_candidate("linear_residual").replace("gemm", "gem")
    with Workbench(bad, facts, facts.headline[1], "H200", Case("device", {}, 0, "normal", "auto")) as bench:
        described = bench.describe()
    assert described.diagnostics[0].rule == "UnknownWord" and described.kernels == ()


# -- the cache


def test_the_folder_follows_the_platform() -> None:
    assert tune_cache.folder({"XDG_CACHE_HOME": "/somewhere"}) == Path("/somewhere/coda-synth/tuning")
    assert (
        tune_cache.folder({}) == Path.home() / ".cache/coda-synth/tuning" == tune_cache.folder({"XDG_CACHE_HOME": "x"})
    )


def found_one(seconds: float = 60.0, complete: bool = False) -> tune_cache.Found:
    tried = Try("gate_up", Schedule(group_m=16), 2, Built(1.0, 168, 0, 200_000), Sample(1.0, 0.9, 1.1, 50))
    result = KernelResult("gate_up", (tried,), tried, tried, 0.02)
    return tune_cache.Found((result,), {"gate_up": "abc"}, {"T": 8192}, seconds, complete)


def keyed(**changes: object) -> tune_cache.Key:
    facts = facts_of(task("linear_swiglu"), "bfloat16")
    said = {"described": program(), "sizes": facts.headline[1], "device": "NVIDIA H200", "measured": True, "seed": 0}
    return tune_cache.key(facts=facts, **{**said, **changes})  # type: ignore[arg-type]


def program(form: str = "f", name: str = "gate_up", **hints: int) -> Described:
    return Described((), form, (TunedKernel(name, ("a",), "abc", 1.0, {"a": Schedule(**hints)}),))


def test_what_is_kept_comes_back_and_nothing_else_does(tmp_path: Path) -> None:
    assert tune_cache.load(tmp_path, keyed(), 60) is None and tune_cache.held(tmp_path / "none") == (0, 0)
    assert tune_cache.save(tmp_path, keyed(), found_one()) == ""
    assert tune_cache.load(tmp_path, keyed(), 60) == found_one()
    sizes = dict(facts_of(task("linear_swiglu"), "bfloat16").headline[1])
    for change in (
        {"described": program("g")},
        {"described": program(stages=4)},
        {"device": "NVIDIA H100"},
        {"measured": False},
        {"seed": 1},
        {"sizes": {**sizes, "F": 5632}},
        {"sizes": {**sizes, "T": 4096}},
    ):
        assert tune_cache.load(tmp_path, keyed(**change), 60) is None
    for same in ({"sizes": {**sizes, "T": 8000}}, {"described": program(name="both")}):  # a bucket; names do not matter
        assert tune_cache.load(tmp_path, keyed(**same), 60) == found_one()
    assert tune_cache.held(tmp_path)[0] == 1


@pytest.mark.parametrize("name", ["coda-synth", "torch", "triton"])
def test_another_version_finds_nothing(name: str, tmp_path: Path) -> None:
    tune_cache.save(tmp_path, keyed(), found_one())
    assert keyed()[name] and tune_cache.load(tmp_path, {**keyed(), name: "another"}, 60) is None


def test_a_larger_budget_tunes_anew_unless_nothing_was_left_out(tmp_path: Path) -> None:
    tune_cache.save(tmp_path, keyed(), found_one(60, complete=False))
    assert tune_cache.load(tmp_path, keyed(), 61) is None and tune_cache.load(tmp_path, keyed(), 30)
    tune_cache.save(tmp_path, keyed(), found_one(60, complete=True))
    assert tune_cache.load(tmp_path, keyed(), 1000)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "[" * 100_000, '{"key": 1}', '{"key": {}, "found": {"kernels": 3}}', "\udcff"]
)
def test_a_file_that_was_damaged_is_told(text: str, tmp_path: Path) -> None:
    tune_cache.save(tmp_path, keyed(), found_one())
    (path,) = tmp_path.iterdir()
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(tune_cache.Damaged, match=re.escape(str(path))):
        tune_cache.load(tmp_path, keyed(), 60)
    assert tune_cache.save(tmp_path, keyed(), found_one()) == "" and tune_cache.load(tmp_path, keyed(), 60)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("found", "ids"), {}),
        (("found", "ids"), {"gate_up": "abc", "more": "def"}),
        (("found", "kernels"), []),
        (("found", "seconds"), 10**400),
        (("found", "kernels", 0, "best", "schedule", "stages"), 99),
        (("key", "seed"), "1"),
    ],
)
def test_a_file_that_says_what_none_says_is_damaged(
    place: tuple[str | int, ...], value: object, tmp_path: Path
) -> None:
    tune_cache.save(tmp_path, keyed(), found_one())
    (path,) = tmp_path.iterdir()
    part = whole = json.loads(path.read_text())
    for name in place[:-1]:
        part = part[name]
    part[place[-1]] = value
    path.write_text(json.dumps(whole))
    with pytest.raises(tune_cache.Damaged, match="is damaged"):
        tune_cache.load(tmp_path, keyed(), 60)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    tune_cache.save(tmp_path, keyed(), found_one())
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.mkdir()
    with pytest.raises(tune_cache.Damaged, match="cannot read"):
        tune_cache.load(tmp_path, keyed(), 60)


def test_a_result_that_is_dropped_is_gone(tmp_path: Path) -> None:
    tune_cache.save(tmp_path, keyed(), found_one())
    tune_cache.drop(tmp_path, keyed())
    assert tune_cache.load(tmp_path, keyed(), 60) is None
    tune_cache.drop(tmp_path, keyed())  # by another call, in the meantime


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write" in tune_cache.save(tmp_path / "file" / "tuning", keyed(), found_one())


def test_another_programs_names_are_put_in(tmp_path: Path) -> None:
    """Equal programs share a result, whatever their authors call kernels and calls."""
    of = asked("linear_swiglu")
    renamed = replace(of, program=read(worked_candidate("linear_swiglu").replace("gate_up", "both"), of.signature))
    mine, theirs = kernels(of)[0], kernels(renamed)[0]
    assert mine.id == theirs.id and (mine.name, theirs.name) == ("gate_up", "both")
    kept = replace(found_one(), ids={"gate_up": mine.id})
    named = kept.called_as([theirs])
    assert named and named.kernels[0].kernel == named.kernels[0].best.kernel == "both"
    assert kept.called_as(kernels(asked("linear_residual"))) is None


# -- the command

IN_GROUPS = Schedule(group_m=16)
GROUPS_OF_16 = worked_candidate("linear_residual").replace(
    "@kernel\n", "@kernel(block_m=128, block_n=256, stages=3, group_m=16)\n"
)


def tune(tmp_path: Path, *options: str, name: str = "linear_residual", **environ: str):  # type: ignore[no-untyped-def]
    file = str(ROOT / "tasks" / f"{name}.coda")
    more = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "CUDA_VISIBLE_DEVICES": "", **environ}
    return cli("tune", file, "--task", name, *options, cwd=tmp_path, **more)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--seconds", "0"), "--seconds 0"),
        (("--seconds", "nan"), "positive"),
        (("--seconds", "x"), "invalid float"),
        (("--out", "no/such/folder.coda"), "folder does not exist"),
        (("--out", "."), "is a folder"),
        (("--target", "sm_9"), "no device"),
        (("--shape", "llama3-8"), "llama3-8b"),
    ],
)
def test_bad_input_is_one_line(options: tuple[str, ...], words: str, tmp_path: Path) -> None:
    refused(tune(tmp_path, *options), 2, words)
    assert not (tmp_path / "cache").exists()


def test_a_place_that_cannot_be_written_is_told_before_the_search(tmp_path: Path) -> None:
    refused(tune(tmp_path, "--out", "x" * 300), 3, "cannot write xxx")
    assert not (tmp_path / "cache").exists()


def test_asking_whether_a_place_can_be_written_changes_nothing_there(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to("nothing")
    for name in ("old", "new", "link"):
        cli_failure.must_be_writable(str(tmp_path / name))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "old"] and (tmp_path / "old").read_text() == "old"


def test_a_gpu_that_is_not_there_is_told(tmp_path: Path) -> None:
    refused(tune(tmp_path, "--device", "cuda"), 3, "--device cuda")


def test_an_unknown_task_or_file(tmp_path: Path) -> None:
    refused(cli("tune", "none.coda", "--task", "linear_residual", cwd=tmp_path), 2, "none.coda")
    refused(cli("tune", "none.coda", "--task", "linear_residua", cwd=tmp_path), 2, "linear_residual")


def test_a_program_that_is_refused_is_not_tuned(tmp_path: Path) -> None:
    (tmp_path / "bad.coda").write_text(worked_candidate("linear_residual").replace("gemm", "gem"))
    done = cli("tune", "bad.coda", "--task", "linear_residual", "--out", "x.coda", cwd=tmp_path)
    assert done.returncode == 1 and "UnknownWord" in done.stdout and "bad.coda:" in done.stdout
    assert "nothing was written" in done.stderr and not (tmp_path / "x.coda").exists()


def kept(tmp_path: Path, name: str, best: Schedule = IN_GROUPS) -> Path:
    """Puts a result into the cache that a command in tmp_path asks, for its first kernel; gives the file."""
    facts = facts_of(task(name), "bfloat16")
    of, sizes = asked(name), facts.headline[1]
    (kernel,) = kernels(of)
    form = hashlib.sha256(canonical(of.program).encode()).hexdigest()
    tried = Try(kernel.name, best, 2, Built(1.0, 168, 0, 200_000))
    result = KernelResult(kernel.name, (tried,), tried, tried, None)
    found = tune_cache.Found((result,), {kernel.name: kernel.id}, sizes, 60.0, False)
    folder = tune_cache.folder({"XDG_CACHE_HOME": str(tmp_path / "cache")})
    described = Described((), form, (kernel,))
    assert tune_cache.save(folder, tune_cache.key(described, facts, sizes, "H200", False, 0), found) == ""
    (path,) = folder.iterdir()
    return path


@pytest.mark.slow
def test_a_hit_answers_with_the_hints_in_this_very_text(tmp_path: Path) -> None:
    kept(tmp_path, "linear_residual")
    done = tune(tmp_path, "--seconds", "60")
    assert done.returncode == 0 and done.stdout == GROUPS_OF_16
    assert "modelled, not measured" in done.stderr and "groups of 16" in done.stderr and "--fresh" in done.stderr


@pytest.mark.slow
def test_a_hit_as_data_and_in_a_file(tmp_path: Path) -> None:
    kept(tmp_path, "linear_residual")
    said = json.loads(tune(tmp_path, "--seconds", "60", "--json", "--out", "tuned.coda").stdout)
    assert said["cached"] and not said["measured"] and said["program"] == GROUPS_OF_16
    assert said["out"] == "tuned.coda" and (tmp_path / "tuned.coda").read_text() == GROUPS_OF_16
    assert said["kernels"][0]["pick_from_best"] is None and said["kernels"][0]["hints"]["group_m"] == 16


TOO_MUCH = Schedule(block_m=256, block_n=256, block_k=128, stages=8, mainloop="portable")  # shared memory


@pytest.mark.slow
def test_what_the_cache_says_is_judged_and_what_does_not_pass_is_tuned_anew(tmp_path: Path) -> None:
    path = kept(tmp_path, "linear_residual", TOO_MUCH)
    before = path.read_text()
    done = tune(tmp_path, "--seconds", "0.01", "--json", "--out", "tuned.coda")
    said = json.loads(done.stdout)
    assert done.returncode == 0 and not said["cached"] and "block_m=256, block_n=256" not in said["program"]
    assert len(done.stderr.strip().splitlines()) == 1 and "does not pass (BUILD_ERROR)" in done.stderr
    assert path.read_text() != before and (tmp_path / "tuned.coda").read_text() == said["program"]


def test_a_damaged_result_is_one_warning_and_tuned_anew(tmp_path: Path) -> None:
    path = kept(tmp_path, "rope_backward")
    path.write_text("[" * 100_000)
    done = tune(tmp_path, "--seconds", "0.01", "--json", name="rope_backward")
    assert done.returncode == 0 and not json.loads(done.stdout)["cached"], done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and f"{path} is damaged" in done.stderr
    assert json.loads(path.read_text())["found"]["ids"]


def test_that_the_schedule_as_written_stays_is_not_said_of_another_one() -> None:
    """Of two texts that differ in their hints alone, the one that does not build gets no answer of the other's."""
    plain = worked_candidate("linear_swiglu")
    facts, sizes = facts_of(task("linear_swiglu"), "bfloat16"), asked("linear_swiglu").sizes

    def key(text: str) -> tune_cache.Key:
        with Workbench(text, facts, sizes, "H200", Case("device", sizes, 0, "normal", "auto")) as bench:
            return tune_cache.key(bench.describe(), facts, sizes, "H200", False, 0)

    first, hinted = key(plain), key(with_hints(plain, {"gate_up": hints_of(TOO_MUCH)}))
    assert {name for name in first if first[name] != hinted[name]} == {"written"}
    assert first == key(plain.replace("gate_up", "both"))


def test_the_doctor_says_where_the_cache_is_and_how_big(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert "nothing is kept yet" in _tuned().text
    kept(tmp_path, "linear_residual")
    assert str(tmp_path / "cache/coda-synth/tuning") in _tuned().text and re.search(r"1 result, \d kB", _tuned().text)


@pytest.mark.slow
def test_a_whole_search_without_a_gpu_prunes_by_real_builds_and_its_text_passes(tmp_path: Path) -> None:
    options = ("--seconds", "300", "--json", "--seed", "1")
    done = tune(tmp_path, *options, name="residual_rmsnorm")
    said = json.loads(done.stdout)
    (kernel,) = said["kernels"]
    assert done.returncode == 0 and said["complete"] and not said["cached"] and len(kernel["tries"]) > 10
    assert {"hopper", "portable", "pingpong"} <= {t["schedule"]["mainloop"] for t in kernel["tries"]}
    assert all(t["registers"] > 0 or t["problem"] for t in kernel["tries"])
    assert canonical(read(said["program"])) == canonical(read(worked_candidate("residual_rmsnorm")))
    (tmp_path / "tuned.coda").write_text(said["program"])
    judged = cli("evaluate", "tuned.coda", "--task", "residual_rmsnorm", "--device", "cpu", "--json", cwd=tmp_path)
    assert json.loads(judged.stdout)["verdict"] == "PASSED"
    assert json.loads(tune(tmp_path, *options, name="residual_rmsnorm").stdout)["cached"]
    fresh = json.loads(tune(tmp_path, *options, "--fresh", name="residual_rmsnorm").stdout)
    assert fresh["kernels"] == said["kernels"] and not fresh["cached"]


@pytest.mark.gpu
def test_on_a_gpu_the_device_decides(tmp_path: Path) -> None:
    done = tune(tmp_path, "--device", "cuda", "--seconds", "30", "--json", CUDA_VISIBLE_DEVICES="0")
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["measured"], done.stderr
    for kernel in said["kernels"]:
        assert kernel["pick_from_best"] >= 0 and sum(t["sample"] is not None for t in kernel["tries"]) > 3
        best = kernel["best"]["sample"]
        assert best["low_ms"] <= best["median_ms"] <= best["high_ms"]


@pytest.mark.gpu
def test_on_a_gpu_an_accumulating_kernel_is_tuned_from_the_same_buffer(tmp_path: Path) -> None:
    done = tune(
        tmp_path, "--device", "cuda", "--seconds", "30", "--json", name="linear_backward", CUDA_VISIBLE_DEVICES="0"
    )
    assert done.returncode == 0 and json.loads(done.stdout)["measured"], done.stderr
