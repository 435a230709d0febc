"""`coda-synth tasks`, `prompt` and `doctor`: what can be asked for, what a model is told, what this machine can do."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coda_synth.agent import config
from coda_synth.agent.cli_failure import Exit, Failure
from coda_synth.agent.cli_found import one_run

if TYPE_CHECKING:
    from coda_synth.agent.provider import Prompt
    from coda_synth.tasks.spec import TaskSpec


def known_task(name: str) -> str:
    """The name itself, if there is such a task; raises Failure with the nearest names. Loads no torch."""
    from coda_synth.tasks.catalog import UnknownTask, task_names

    if name not in task_names():
        raise Failure(str(UnknownTask(name)))
    return name


def known_target(name: str) -> str:
    """The target itself, if the cost model and the build know it; raises Failure."""
    from coda_synth.coda_api.devices import UnknownDevice, device

    try:
        device(name)
    except UnknownDevice as error:
        raise Failure(str(error)) from None
    return name


def tasks(args: argparse.Namespace) -> Exit:
    """Prints a line for every task; of those that are named the dims, shapes and the bound that no kernel can beat; or
    the sizes of their prompts. As JSON always everything."""
    from coda_synth.tasks.catalog import task, task_names

    names = [known_task(name) for name in args.task] or list(task_names())
    if args.prompts:
        return _prompt_sizes(args, names)
    target = known_target(config.of(args).target)
    from coda_synth.agent.cli_view import console, print_json

    if args.json:
        print_json([_described(task(name), target) for name in names])
        return Exit.OK
    lines = [line for name in args.task for line in _lines(_described(task(name), target))]
    screen = console()
    for line in lines or _overview([task(name) for name in names]):
        screen.print(line, markup=False, soft_wrap=True)
    return Exit.OK


def _overview(specs: list[TaskSpec]) -> list[str]:
    width = max(len(spec.name) for spec in specs)
    lines = [f"{spec.name:{width}}  {spec.summary}" for spec in specs]
    return [*lines, "", "With names: inputs, outputs, shapes and bounds, as in `coda-synth tasks linear_swiglu`."]


def _described(spec: TaskSpec, target: str) -> dict[str, Any]:
    inputs = [{"name": i.name, "dims": i.dims, "dtype": i.dtype, "role": i.role} for i in spec.inputs]
    outputs = [{"name": o.name, "dims": o.dims, "dtype": o.dtype} for o in spec.outputs]
    shapes = [_shape(spec, label, sizes, target) for label, sizes in spec.time_shapes.items()]
    head = {"name": spec.name, "summary": spec.summary, "dtypes": spec.dtypes}
    return {**head, "inputs": inputs, "outputs": outputs, "shapes": shapes}


def _shape(spec: TaskSpec, label: str, sizes: Mapping[str, int], target: str) -> dict[str, Any]:
    from coda_synth.coda_api.cost import bound_s, task_bytes, task_flops
    from coda_synth.coda_api.devices import device
    from coda_synth.evaluator.signature import signature

    dtype = spec.dtypes[0]
    typed, part = signature(spec, dtype), device(target)
    flops, moved = task_flops(spec.gemms, sizes), task_bytes(typed, sizes)
    compute = flops / part.peak_flops(dtype) > moved / part.peak_bytes_per_s
    return {
        "label": label,
        "sizes": sizes,
        "flops": flops,
        "bytes": moved,
        "device": part.name,
        "bound_ms": 1e3 * bound_s(typed, spec.gemms, sizes, part),
        "bound_by": "arithmetic" if compute else "memory",
    }


def _lines(entry: dict[str, Any]) -> list[str]:
    def typed(tensor: dict[str, Any]) -> str:
        role = {"weight": " (weight)", "in_place": " (in place)"}.get(tensor.get("role", ""), "")
        return f"{tensor['name']}[{', '.join(tensor['dims'])}]{role}" if tensor["dims"] else tensor["name"]

    lines = [
        f"{entry['name']}: {entry['summary']}",
        f"  takes {', '.join(map(typed, entry['inputs']))}",
        f"  gives {', '.join(map(typed, entry['outputs']))}; {', '.join(entry['dtypes'])}",
    ]
    for shape in entry["shapes"]:
        sizes = " ".join(f"{name}={size}" for name, size in shape["sizes"].items())
        bound = f"at least {shape['bound_ms']:.3f} ms on {shape['device']} ({shape['bound_by']})"
        lines.append(f"  {shape['label']:<10} {sizes}: {bound}")
    return lines


def _prompt_sizes(args: argparse.Namespace, names: list[str]) -> Exit:
    """Of the first request for each task, in tokens. Estimated: a service counts them one by one."""
    from coda_synth.agent.cli_view import console, print_json, table
    from coda_synth.agent.tokens import estimate

    made = {name: _first_prompt(args, name)[0] for name in names}
    sizes = {name: (estimate(told.system), estimate(told.user)) for name, told in made.items()}
    if args.json:
        found = [{"name": n, "system": one, "user": two, "total": one + two} for n, (one, two) in sizes.items()]
        print_json({"kind": "estimated", "tasks": found})
    else:
        rows = [(name, f"{one:,}", f"{two:,}", f"{one + two:,}") for name, (one, two) in sizes.items()]
        columns = ("task", "system text", "task text", "in all")
        console().print(table(columns, rows, title="tokens of the first prompt, estimated", right=columns[1:]))
    return Exit.OK


def prompt(args: argparse.Namespace) -> Exit:
    """Prints a request word for word: the first of a run, or the next one of the run that is named."""
    name = known_task(args.task)
    from coda_synth.agent.cli_view import print_json

    made, settings = _next_prompt(args, name) if args.after else _first_prompt(args, name)
    counts = _tokens(made, settings)
    if args.json:
        print_json({"system": made.system, "user": made.user, "tokens": counts})
    else:
        print(f"=== system\n{made.system}\n\n=== user\n{made.user}")
        said = f"{counts['system']:,} of the system text, {counts['user']:,} of the rest, {counts['total']:,} in all"
        print(f"coda-synth: tokens, {counts['kind']}: {said}", file=sys.stderr)
    return Exit.OK


def _first_prompt(args: argparse.Namespace, name: str) -> tuple[Prompt, config.Config]:
    from coda_synth.agent.cli_session import loop_settings
    from coda_synth.agent.lessons import load, told
    from coda_synth.agent.prompting import prompt
    from coda_synth.agent.strategy import STRATEGIES
    from coda_synth.coda_api.devices import device
    from coda_synth.tasks.catalog import task

    settings = config.of(args)
    known = told(load(Path(settings.runs)), name, device(known_target(settings.target)).name)
    choice = STRATEGIES[settings.strategy](())
    return prompt(task(name), (), choice, loop_settings(settings, known)), settings


def _next_prompt(args: argparse.Namespace, name: str) -> tuple[Prompt, config.Config]:
    """As the loop will make it: its system text is the one that the run began with."""
    from dataclasses import replace

    from coda_synth.agent.asking import SYSTEM
    from coda_synth.agent.cli_session import loop_settings
    from coda_synth.agent.prompting import prompt
    from coda_synth.agent.strategy import turn
    from coda_synth.tasks.catalog import task

    record = one_run(args, args.after)
    if record.run.task != name:
        raise Failure(f"run {record.run.id} is of the task {record.run.task}, not {name}")
    settings = config.stored(record.run.settings, args)
    found = turn(settings.strategy, record.attempts, settings.tune, ahead=settings.provider != "planner")
    made = prompt(task(name), found.known, found.choice, loop_settings(settings))
    kept = Path(config.of(args).runs) / record.run.id / SYSTEM
    return (replace(made, system=kept.read_text(encoding="utf-8")) if kept.is_file() else made), settings


def _tokens(made: Prompt, settings: config.Config) -> dict[str, int | str]:
    """The service's own count where the chosen provider has a key and such a call; else an estimate, and called so."""
    from coda_synth.agent.cli_session import provider_of
    from coda_synth.agent.provider import Paid, ProviderError
    from coda_synth.agent.tokens import estimate

    system, user, kind = estimate(made.system), estimate(made.user), "estimated"
    total = system + user
    try:
        author = provider_of(settings) if settings.provider in ("anthropic", "openai") else None
        counted = author.count(made) if isinstance(author, Paid) else None
    except ProviderError as error:
        counted, kind = None, f"estimated ({error})"
    if counted is not None:
        system = round(counted * system / total)
        user, total, kind = counted - system, counted, "counted by the service, split by length"
    return {"system": system, "user": user, "total": total, "kind": kind}


def doctor(args: argparse.Namespace) -> Exit:
    """Prints what was found; ENVIRONMENT where something is missing without which nothing works."""
    from coda_synth.agent.cli_view import console, print_json, progress, table
    from coda_synth.agent.doctor import examine

    with progress(args) as screen:
        findings = examine(Path(config.of(args).runs), screen.say)
    if args.json:
        print_json(findings)
    else:
        rows = [(f.name, f.state, f.text) for f in findings]
        console().print(table(("what", "state", "found"), rows))
    return Exit.ENVIRONMENT if any(f.state == "missing" for f in findings) else Exit.OK
