"""What the tuner has found, kept for the next call: a file for each program, its schedules as written, device, shape
bucket, seed and versions, in a folder that may be removed at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from coda_synth.agent.tune import KernelResult
from coda_synth.evaluator.facts import TaskFacts
from coda_synth.evaluator.proposed import Described, TunedKernel
from coda_synth.evaluator.serial import from_data, to_data

from coda_synth import __version__

Key = Mapping[str, str]


class Damaged(Exception):
    """A file of the cache that cannot be read, or does not say what such a file says; the message names it."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found. ids: the canonical name of each kernel; sizes: at which it was found; seconds: its budget;
    complete: whether that was enough, so that no larger one would find more."""

    kernels: tuple[KernelResult, ...]
    ids: Mapping[str, str]
    sizes: Mapping[str, int]
    seconds: float
    complete: bool
    notes: tuple[str, ...] = ()

    def called_as(self, kernels: Iterable[TunedKernel]) -> Found | None:
        """The same for a program of the same form with other names; None where it has a kernel that is not here."""
        by_id = {self.ids[found.kernel]: found for found in self.kernels}
        now = {kernel.name: kernel.id for kernel in kernels}
        if not set(now.values()) <= set(by_id):
            return None
        return replace(self, kernels=tuple(_named(by_id[id], name) for name, id in now.items()), ids=now)


def _named(found: KernelResult, name: str) -> KernelResult:
    best, pick = (replace(tried, kernel=name) for tried in (found.best, found.pick))
    return replace(found, kernel=name, tries=tuple(replace(t, kernel=name) for t in found.tries), best=best, pick=pick)


def folder(environ: Mapping[str, str] | None = None) -> Path:
    """$XDG_CACHE_HOME/coda-synth/tuning, or ~/.cache/coda-synth/tuning; a relative XDG_CACHE_HOME means nothing."""
    base = (os.environ if environ is None else environ).get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "coda-synth" / "tuning"


def key(
    described: Described, facts: TaskFacts, sizes: Mapping[str, int], device: str, measured: bool, seed: int
) -> Key:
    """Names and order of the text do not matter. Its schedules do: that one of them stays is said of that one alone."""
    written = {kernel.id: [kernel.schedules[call] for call in kernel.calls] for kernel in described.kernels}
    return {
        "program": described.form,
        "written": _hash(written),
        "signature": _hash(facts.signature),
        "device": f"{device}, {'measured' if measured else 'modelled'}",
        "shape": " ".join(f"{name}={size}" for name, size in bucket(sizes, facts.row).items()),
        "seed": str(seed),
        **versions(),
    }


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(to_data(value), sort_keys=True).encode()).hexdigest()[:16]


def bucket(sizes: Mapping[str, int], row: str | None) -> dict[str, int]:
    """The sizes, the number of rows rounded up to a power of two: tokens vary from call to call, widths do not."""
    return {name: 1 << (size - 1).bit_length() if name == row else size for name, size in sizes.items()}


def versions() -> dict[str, str]:
    """Ours, torch's and triton's: another one may schedule otherwise."""
    found = {"coda-synth": __version__}
    for name in ("torch", "triton"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "none"
    return found


def load(at: Path, wanted: Key, seconds: float) -> Found | None:
    """What was found with at least this budget; None where nothing was. Raises Damaged."""
    path = _file(at, wanted)
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        found: Found = from_data(Found, kept["found"])
        sound = kept["key"] == wanted and {kernel.kernel for kernel in found.kernels} == set(found.ids)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Damaged(f"cannot read {path}: {error.strerror or error}; it is tuned anew") from error
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        sound = False
    if not sound:
        raise Damaged(f"{path} is damaged; it is tuned anew")
    return found if found.complete or found.seconds >= seconds else None


def save(at: Path, wanted: Key, found: Found) -> str:
    """Writes a file at once or not at all; gives what went wrong in words, or ""."""
    try:
        at.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=at, suffix=".part", delete=False, encoding="utf-8") as file:
            json.dump({"key": wanted, "found": to_data(found)}, file, indent=1)
        os.replace(file.name, _file(at, wanted))
    except OSError as error:
        return f"the result was not kept: cannot write in {at}: {error.strerror or error}"
    return ""


def drop(at: Path, wanted: Key) -> None:
    """Forgets a result; where the folder cannot be written, it stays."""
    with contextlib.suppress(OSError):
        _file(at, wanted).unlink()


def held(at: Path) -> tuple[int, int]:
    """(results, bytes) in the folder."""
    sizes = [path.stat().st_size for path in at.glob("*.json")] if at.is_dir() else []
    return len(sizes), sum(sizes)


def _file(at: Path, wanted: Key) -> Path:
    return at / f"{hashlib.sha256(json.dumps(wanted, sort_keys=True).encode()).hexdigest()[:24]}.json"
