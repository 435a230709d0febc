"""All runs' candidates that passed, best first: an SQLite index, made from the record and never the truth itself.

The index is brought up to date at each look: runs that grew are read again, runs that are gone are dropped. A missing,
damaged or older index is rebuilt; where its folder cannot be written, it is made in memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from coda_synth.evaluator.evaluation import Modelled, Timing, Verdict
from coda_synth.runs.ranking import rank_key
from coda_synth.runs.record import Attempt, Run
from coda_synth.runs.store import ATTEMPTS, HEAD, Store, StoreError
from coda_synth.runs.survey import headless

INDEX = Path(".leaderboard") / "index.sqlite"  # in a folder of its own, beside the runs: without a head it is no run
_VERSION = 2  # of the schema; raise it with every change
_SCHEMA = """
create table runs (id text primary key, state text) strict;
create table entries (
  run text, step integer, started text, task text, candidate text, author text, verdict text, kind integer,
  device text, shape text, place integer, time_ms real, spills integer, length integer,
  bound_ms real, bare_ms real, eager_ms real, compile_ms real
) strict;
create index entries_by_run on entries (run);
create index entries_by_candidate on entries (task, candidate);
"""
# The newest figure of a candidate counts, not the luckiest; a newer INCORRECT takes it off the board.
_NEWEST = """
select *, row_number() over (
    partition by kind, task, device, place, shape order by time_ms, spills, length, started, run, step) as rank
from (select *, row_number() over (
    partition by kind, task, device, shape, candidate order by started desc, run desc, step desc) as age
  from entries as e where kind < 2 and not exists (
    select 1 from entries as f where f.task = e.task and f.candidate = e.candidate and f.verdict = 'INCORRECT'
      and (f.started, f.run, f.step) > (e.started, e.run, e.step)))
where age = 1 and (:task is null or task = :task)
order by kind, task, device, place, shape, rank
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate on one shape of one device. rank counts from 1 among the rows of its task, device and shape.

    time_ms: the median measured, or the estimate where not `measured`. vs_*: the named baseline's time over ours, above
    1 we are faster; None where there is none. bound_share: the cost model's bound over our time, at most about 1.
    """

    rank: int
    task: str
    candidate: str
    author: str
    run: str
    step: int
    verdict: str
    measured: bool
    device: str
    shape: str
    time_ms: float
    vs_bare: float | None
    vs_eager: float | None
    vs_compile: float | None
    bound_share: float


@dataclass(frozen=True, slots=True)
class Board:
    """Measured and modelled rows apart: an estimate is never ranked beside a measurement."""

    measured: tuple[Row, ...]
    modelled: tuple[Row, ...]
    notes: tuple[str, ...] = ()  # runs that could not be read, in words


def board(store: Store, task: str | None = None) -> Board:
    """The leaderboard of all runs, or of one task's; by task, device and shape (headline first), best first."""
    notes = [said for _, said in headless(store)]
    with closing(_open(store.root)) as index:
        _refresh(index, store, notes)
        found = [_row(r) for r in index.execute(_NEWEST, {"task": task})]
    return Board(tuple(r for r in found if r.measured), tuple(r for r in found if not r.measured), tuple(notes))


def rows(store: Store, task: str | None = None) -> list[Row]:
    """The measured rows, then the modelled ones; ranks start anew."""
    both = board(store, task)
    return [*both.measured, *both.modelled]


def _open(root: Path) -> sqlite3.Connection:
    path = root / INDEX
    if not root.is_dir():
        return _in_memory()
    try:
        path.parent.mkdir(exist_ok=True)
        return _connect(path)
    except sqlite3.OperationalError:  # a read-only record, or one on a file system without locks
        return _in_memory()
    except sqlite3.DatabaseError:  # not a database, or a damaged one: it holds nothing that the runs do not
        path.unlink()
        return _connect(path)
    except OSError:
        return _in_memory()


def _in_memory() -> sqlite3.Connection:
    return _fresh(sqlite3.connect(":memory:", isolation_level=None))


def _connect(path: Path) -> sqlite3.Connection:
    index = sqlite3.connect(path, timeout=10.0, isolation_level=None)
    try:
        index.execute("pragma journal_mode = wal")
        index.execute("begin immediate")
        if index.execute("pragma user_version").fetchone()[0] != _VERSION:
            _fresh(index)
        index.execute("commit")
    except BaseException:
        index.close()
        raise
    return index


def _fresh(index: sqlite3.Connection) -> sqlite3.Connection:
    """Empties the database and lays the schema, statement by statement: executescript would end the transaction."""
    for (name,) in index.execute("select name from sqlite_schema where type = 'table'").fetchall():
        index.execute(f'drop table "{name}"')
    for statement in filter(str.strip, _SCHEMA.split(";")):
        index.execute(statement)
    index.execute(f"pragma user_version = {_VERSION}")
    return index


def _refresh(index: sqlite3.Connection, store: Store, notes: list[str]) -> None:
    index.row_factory = sqlite3.Row
    index.execute("begin immediate")
    known = {r["id"]: r["state"] for r in index.execute("select * from runs")}
    present = set(store.ids())
    for run_id in known.keys() - present:
        _forget(index, run_id)
    for run_id in sorted(present):
        state = _state(store.root / run_id)
        if state is not None and known.get(run_id) == state:
            continue
        _forget(index, run_id)
        try:
            run, attempts = store.load(run_id)
        except StoreError as error:
            notes.append(str(error))
            continue
        index.executemany(f"insert into entries values ({','.join('?' * 18)})", _entries(run, attempts))
        index.execute("insert into runs values (?, ?)", (run_id, state or ""))
    index.execute("commit")


def _forget(index: sqlite3.Connection, run_id: str) -> None:
    index.execute("delete from entries where run = ?", (run_id,))
    index.execute("delete from runs where id = ?", (run_id,))


def _state(folder: Path) -> str | None:
    """What changes when one of a run's files does; None where one is not there, of which the index knows nothing."""
    try:
        found = [(folder / name).stat() for name in (HEAD, ATTEMPTS)]
    except OSError:
        return None
    return " ".join(f"{status.st_size} {status.st_mtime_ns}" for status in found)


def _entries(run: Run, attempts: tuple[Attempt, ...]) -> Iterator[tuple[object, ...]]:
    """One entry for each shape of a candidate that passed, and one (kind 2) for each that was found incorrect."""
    for attempt in attempts:
        candidate, evaluation = attempt.candidate, attempt.evaluation
        if candidate is None or evaluation is None:
            continue
        head = (run.id, attempt.step, run.started, run.task, candidate.id, candidate.author, evaluation.verdict.value)
        if evaluation.verdict is Verdict.INCORRECT:
            yield (*head, 2, *(None,) * 10)
        for place, figure in enumerate(evaluation.figures):
            key = rank_key(candidate, evaluation, place)
            if key is not None:
                yield (*head, key[0], figure.device, figure.shape, place, *key[1:], *_peers(figure))


def _peers(figure: Timing | Modelled) -> tuple[float | None, ...]:
    """Milliseconds: the bound, then bare GEMMs, eager and compile where they are known."""
    if isinstance(figure, Modelled):
        return figure.bound_ms, figure.bare_gemm_ms, None, None
    times = {b.name: b.median_ms for b in figure.baselines}
    return figure.bound_ms, times.get("bare_gemm"), times.get("eager"), times.get("compile")


def _row(r: sqlite3.Row) -> Row:
    time = r["time_ms"]
    bare, eager, compiled = (r[name] / time if r[name] else None for name in ("bare_ms", "eager_ms", "compile_ms"))
    return Row(
        rank=r["rank"],
        task=r["task"],
        candidate=r["candidate"],
        author=r["author"],
        run=r["run"],
        step=r["step"],
        verdict=r["verdict"],
        measured=r["kind"] == 0,
        device=r["device"],
        shape=r["shape"],
        time_ms=time,
        vs_bare=bare,
        vs_eager=eager,
        vs_compile=compiled,
        bound_share=r["bound_ms"] / time,
    )
