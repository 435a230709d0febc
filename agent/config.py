"""Settings from their three sources, weakest first: a file, the environment, the command line. Reads no API keys."""

from __future__ import annotations

import argparse
import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

PROVIDERS = ("planner", "scripted", "exchange", "anthropic", "openai", "openai-compatible")
STRATEGIES = ("refine", "beam", "best-of-n", "tuner-only")
DEVICES = ("auto", "cpu", "cuda")
ENVIRONMENT = "CODA_SYNTH_"


class ConfigError(ValueError):
    """A setting that does not exist or cannot have this value; the message names the source."""


@dataclass(frozen=True, slots=True)
class Config:
    """What every command may need; docs/cli.md says what each setting means. Numbers that may be None have no limit."""

    provider: str = "planner"
    model: str | None = None
    fallback: str | None = None
    base_url: str | None = None
    replies: str | None = None
    effort: str | None = None
    max_output_tokens: int | None = None
    strategy: str = "refine"
    tune: int = 0
    attempts: int = 6
    minutes: float = 8.0
    tokens: int | None = None
    usd: float = 5.0
    gpu_seconds: float | None = None
    within: float | None = None
    patience: int | None = None
    allow_unpriced: bool = False
    wait: bool = True
    jobs: int | None = None
    device: str = "auto"
    target: str = "sm_90"
    runs: str = "runs"
    seed: int | None = None
    call_seconds: float = 900.0
    build_seconds: float = 180.0
    check_seconds: float = 60.0
    device_seconds: float = 180.0
    measure_seconds: float = 420.0
    counters: bool = False

    def __post_init__(self) -> None:
        _one_of("provider", self.provider, PROVIDERS)
        _one_of("strategy", self.strategy, STRATEGIES)
        _one_of("device", self.device, DEVICES)
        if self.attempts < 1:
            raise ConfigError(f"attempts = {self.attempts}: a run needs at least one")
        if self.seed is not None:
            from coda_synth.evaluator.judge import SEEDS  # late: most commands need no seed

            if not 0 <= self.seed < SEEDS:
                said = f"out of range: a seed is a whole number from 0 to {SEEDS - 1}"
                raise ConfigError(f"seed = {self.seed}: {said}")
        if self.tune < 0:
            raise ConfigError(f"tune = {self.tune}: it must be 0 or more")
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} = {value}: it must be a positive number")


NAMES = tuple(field.name for field in fields(Config))
OF_THE_JUDGE = (
    *("device", "target", "seed", "counters"),
    *("build_seconds", "check_seconds", "device_seconds", "measure_seconds"),
)
OF_THE_BUDGET = ("attempts", "minutes", "tokens", "usd", "gpu_seconds", "within", "patience", "tune")
OF_THE_COMMAND = ("runs", "jobs")  # they belong to the machine or the command line, and not to the run
_INTEGERS = ("max_output_tokens", "tune", "attempts", "tokens", "patience", "jobs", "seed")
_REALS = (
    *("minutes", "usd", "gpu_seconds", "within"),
    *("call_seconds", "build_seconds", "check_seconds", "device_seconds", "measure_seconds"),
)
_OTHERS = ("API_KEY", "MODELS")  # variables that are no settings: a server's key, a table of prices
_SWITCHES = ("allow_unpriced", "wait", "counters")
_POSITIVE = (*_REALS, "tokens", "patience", "max_output_tokens", "jobs")
_KINDS: dict[str, type] = {**dict.fromkeys(_INTEGERS, int), **dict.fromkeys(_REALS, float)}
_SAID = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def load(folder: Path, environ: Mapping[str, str], flags: Mapping[str, object]) -> Config:
    """The settings in force in `folder`; a flag that is None was not given. Raises ConfigError."""
    chosen: dict[str, object] = {}
    for source, values in ((*_file(folder),), ("the environment", _environment(environ)), ("the command line", flags)):
        for name, value in values.items():
            if value is not None:
                chosen[name] = _typed(name, value, source)
    return replace(Config(), **chosen)  # type: ignore[arg-type]


def stored(kept: Mapping[str, str], args: argparse.Namespace) -> Config:
    """The settings of a run that goes on: as it was begun, with what this command line and this machine say over it.

    Where the record lies belongs to the machine and not to the run, and how many runs go on at once to the command.
    """
    here = of(args)
    begun = {name: value for name, value in kept.items() if name in NAMES and name not in OF_THE_COMMAND}
    given = {name: value for name in NAMES if (value := getattr(args, name, None)) is not None}
    chosen = {name: _typed(name, value, "the run's settings") for name, value in begun.items()}
    chosen |= {name: _typed(name, value, "the command line") for name, value in given.items()}
    chosen |= {name: getattr(here, name) for name in OF_THE_COMMAND}
    return replace(Config(), **chosen)  # type: ignore[arg-type]


def unlike(kept: Mapping[str, str], settings: Config) -> list[str]:
    """In which of its budgets and its judge's settings a run that was kept differs from what is asked now, in words.
    What an older version did not keep is what it is by default."""
    names, told = (*OF_THE_BUDGET, *OF_THE_JUDGE), _told(Config()) | dict(kept)
    asked = _told(settings)
    return [
        f"{name} = {told.get(name, 'none')} and not {asked.get(name, 'none')}"
        for name in names
        if told.get(name) != asked.get(name)
    ]


def _told(settings: Config) -> dict[str, str]:
    """As a run keeps them."""
    return {name: str(value) for name in NAMES if (value := getattr(settings, name)) is not None}


def of(args: argparse.Namespace) -> Config:
    """The settings of one command line, in the current folder and environment."""
    return load(Path.cwd(), os.environ, {name: getattr(args, name, None) for name in NAMES})


def _file(folder: Path) -> tuple[str, Mapping[str, object]]:
    """coda-synth.toml, or else [tool.coda-synth] of pyproject.toml, beside the caller."""
    own, shared = folder / "coda-synth.toml", folder / "pyproject.toml"
    path = own if own.is_file() else shared
    if not path.is_file():
        return str(path), {}
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}") from None
    table = data if path is own else data.get("tool", {}).get("coda-synth", {})
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path.name}: coda-synth must be a table")
    return path.name, {name.replace("-", "_"): value for name, value in table.items()}


def _environment(environ: Mapping[str, str]) -> dict[str, object]:
    """CODA_SYNTH_ATTEMPTS and its like."""
    return {name: environ[key] for name in NAMES if environ.get(key := ENVIRONMENT + name.upper())}


def unknown_variables(environ: Mapping[str, str]) -> tuple[str, ...]:
    """What has the prefix and no meaning, with the nearest that has one: a warning, for it may be another tool's."""
    known = {ENVIRONMENT + name.upper() for name in NAMES} | {ENVIRONMENT + name for name in _OTHERS}
    odd = sorted(name for name in environ if name.startswith(ENVIRONMENT) and name not in known)
    near = {name: difflib.get_close_matches(name, known, n=1) for name in odd}
    return tuple(f"{name} is no setting" + (f"; did you mean {near[name][0]}?" if near[name] else "") for name in odd)


def _typed(name: str, value: object, source: str) -> object:
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; the settings are {', '.join(NAMES)}"
        raise ConfigError(f"{source}: there is no setting {name!r}{hint}")
    if name in _SWITCHES:
        said = value if isinstance(value, bool) else _SAID.get(str(value).lower())
        if said is None:
            raise ConfigError(f"{source}: {name} = {value!r} must be true or false")
        return said
    kind = _KINDS.get(name, str)
    if kind is str and not isinstance(value, (str, Path)):
        raise ConfigError(f"{source}: {name} = {value!r} must be text")
    if isinstance(value, bool) or (kind is int and isinstance(value, float)):
        raise ConfigError(f"{source}: {name} = {value!r} must be a whole number")
    try:
        return kind(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{source}: {name} = {value!r} must be a number") from None


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} = {value!r} is not possible; it must be one of {', '.join(allowed)}")
