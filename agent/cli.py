"""The command line: what can be asked, and how it ends. Heavy imports belong inside the command bodies, never here."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NoReturn

from coda_synth.agent.cli_failure import Exit, Failure, as_failure
from coda_synth.agent.cli_signals import one_interrupt
from coda_synth.agent.config import DEVICES, NAMES, PROVIDERS, STRATEGIES, unknown_variables

from coda_synth import __version__

_EXITS = """exit codes:
  0    done, and what was asked passed
  1    the candidate, or every candidate of the run, did not pass
  2    bad usage or bad input
  3    this machine cannot do it: no key, no GPU where one was asked for, an unwritable
       folder, a run whose record is damaged
  4    a run waits for its author's reply; its record is whole
  70   a fault of coda-synth itself; the message says where the details are
  130  interrupted
  141  the reader of the output went away, as in `| head`
With several tasks or runs: 130 if interrupted, else 4 if one waits, else 1 if one did not pass, else 0.
A run that breaks off (no network, no credit) counts as one that did not pass; if every run does, the code is 3.
For bench it is a result that a run did not pass, and no reason for a code of 1.
settings: coda-synth.toml or [tool.coda-synth] in pyproject.toml, then CODA_SYNTH_<NAME>, then the options."""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong with the arguments as every other failure is said: one line, or one JSON document."""

    def error(self, message: str) -> NoReturn:
        raise Failure(f"{message}; `{self.prog} --help` lists what there is")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and gives its exit code; no exception leaves it but SystemExit, after --help and --version."""
    given = sys.argv[1:] if argv is None else list(argv)
    as_json = "--json" in given
    with one_interrupt():
        try:
            code = _run(given)
            sys.stdout.flush()  # a reader who went away is noticed here, not at the interpreter's end
            return code
        except KeyboardInterrupt:
            return _ended(Failure("interrupted", Exit.INTERRUPTED), as_json)
        except BrokenPipeError:  # the reader went away, as in `| head`; keep the interpreter's end from flushing again
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return Exit.READER_GONE
        except Exception as error:
            return _ended(as_failure(error), as_json)


def _run(given: Sequence[str]) -> int:
    parser = _parser()
    args = parser.parse_args(given)
    if args.command is None:
        parser.print_help()
        return Exit.OK
    for warning in () if args.quiet else unknown_variables(os.environ):
        print(f"coda-synth: warning: {warning}", file=sys.stderr)
    return int(_body(args.body)(args))


def _ended(failure: Failure, as_json: bool) -> int:
    if as_json:
        print(json.dumps({"error": str(failure), "exit": int(failure.code)}), flush=True)
    print(f"coda-synth: {failure}", file=sys.stderr)
    return failure.code


def _body(place: str) -> Callable[[argparse.Namespace], Exit]:
    module, _, function = place.partition(":")
    body: Callable[[argparse.Namespace], Exit] = getattr(import_module(f"coda_synth.agent.{module}"), function)
    return body


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="coda-synth",
        description="Fast GPU kernels for Transformers: a task goes in, a judged and ranked kernel comes out.",
        epilog=_EXITS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"coda-synth {__version__}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    judging = (_evaluate, _tune, _regrade, _lint)
    reading = (_show, _diff, _leaderboard, _lessons, _export)
    for add in (_synth, _resume, _bench, *judging, _tasks, _prompt, *reading, _doctor):
        add(commands)
    return parser


def _command(commands: argparse._SubParsersAction, name: str, body: str, text: str) -> argparse.ArgumentParser:  # type: ignore[type-arg]
    parser: argparse.ArgumentParser = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document on stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    parser.set_defaults(body=body, **dict.fromkeys(NAMES))
    return parser


def _judge_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=DEVICES, help="where to check and time (auto: a GPU if there is one)")
    parser.add_argument("--target", metavar="ARCH", help="the GPU to build for (sm_90)")
    parser.add_argument("--seed", type=int, help="make the inputs, and so the checks, repeatable")


def _counters_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--counters",
        action=argparse.BooleanOptionalAction,
        help="hardware counters in the profile, by Nsight Compute, where a GPU measures; many seconds more",
    )


def _runs_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", metavar="PATH", help="the folder of the record (runs)")


def _author_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--provider", choices=PROVIDERS, help="who writes the candidates (planner: needs no key)")
    parser.add_argument("--model", help="the model's id, for a paid or local provider")
    parser.add_argument(
        "--fallback", metavar="MODELS", help="asked where a model refuses: MODEL or PROVIDER/MODEL, ..."
    )
    parser.add_argument("--base-url", metavar="URL", help="another address of the service")
    parser.add_argument("--effort", help="how much the model should think (high)")
    parser.add_argument("--replies", metavar="PATH", help="the replies that the scripted provider replays")
    parser.add_argument("--strategy", choices=STRATEGIES, help="what the author is shown next (refine)")
    parser.add_argument("--tune", type=int, metavar="N", help="tries of the tuner at each new measured best (0)")


def _budget_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--attempts", type=int, metavar="N", help="at most N candidates of the author a run (6)")
    parser.add_argument("--minutes", type=float, metavar="M", help="at most M minutes of work a run (8)")
    parser.add_argument("--tokens", type=int, metavar="N", help="at most N tokens a run, in and out")
    parser.add_argument(
        "--usd", type=float, metavar="U", help="at most U dollars a run, not a command; for models with a price (5)"
    )
    parser.add_argument("--max-output-tokens", type=int, metavar="N", help="of one reply, thinking included (64000)")
    parser.add_argument("--gpu-seconds", type=float, metavar="S", help="at most S seconds on the GPU a run")
    parser.add_argument("--within", type=float, metavar="P", help="stop within P of the bound: 0.05 is 5 %%")
    parser.add_argument("--patience", type=int, metavar="K", help="stop when K attempts in a row brought nothing")
    parser.add_argument(
        "--allow-unpriced", action=argparse.BooleanOptionalAction, help="use a model whose price is not known"
    )
    parser.add_argument(
        "--wait", action=argparse.BooleanOptionalAction, help="exchange: wait for the reply, or stop with code 4 (wait)"
    )


def _jobs_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="N runs at once, each with its own budgets (1; anthropic, openai: 4; exchange that waits: all)",
    )


def _synth(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "synth", "cli_synth:synth", "make kernels for tasks, judge them and keep the record")
    parser.add_argument("task", nargs="*", metavar="TASK")
    parser.add_argument("--all", action="store_true", help="every task, one run each")
    _jobs_option(parser)
    _author_options(parser)
    _budget_options(parser)
    _judge_options(parser)
    _counters_option(parser)
    _runs_option(parser)


def _resume(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "resume", "cli_synth:resume", "go on with a run where it was left, for whatever reason")
    parser.add_argument("run", nargs="*", metavar="RUN", help="ids, or their beginnings; left out: the latest")
    parser.add_argument("--waiting", action="store_true", help="every run that waits for a reply")
    _jobs_option(parser)
    _author_options(parser)
    _budget_options(parser)
    _judge_options(parser)
    _counters_option(parser)
    _runs_option(parser)


def _bench(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "bench", "cli_bench:bench", "compare authors and strategies under equal budgets")
    parser.add_argument("--tasks", nargs="+", required=True, metavar="T")
    parser.add_argument(
        "--authors", nargs="+", default=["planner"], metavar="A", help="PROVIDER[/MODEL], scripted=PATH"
    )
    parser.add_argument("--strategies", nargs="+", default=["refine"], metavar="S", help=", ".join(STRATEGIES))
    parser.add_argument("--repeats", type=int, default=1, metavar="R", help="runs of each combination (1)")
    parser.add_argument(
        "--name", default="bench", help="the same name goes on where it stopped, and tries again what broke off (bench)"
    )
    parser.add_argument("--near", type=float, default=0.1, metavar="P", help="near means within P of the bound (0.1)")
    parser.add_argument("--fast", type=float, default=1.0, metavar="F", help="fast means F of the baseline's speed (1)")
    parser.add_argument("--baseline", default="compile", help="bare_gemm, eager or compile (compile)")
    parser.add_argument("--base-url", metavar="URL", help="another address of the service")
    _jobs_option(parser)
    _budget_options(parser)
    _judge_options(parser)
    _counters_option(parser)
    _runs_option(parser)


def _evaluate(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "evaluate", "cli_evaluate:evaluate", "judge one candidate file")
    parser.add_argument("file", metavar="FILE", help="a .coda file; - reads stdin")
    parser.add_argument("--task", required=True, help="the task that it must compute")
    parser.add_argument("--no-measure", action="store_true", help="stop after the checks")
    parser.add_argument("--receipt", metavar="FILE", help="write all that it takes to repeat this judgement")
    _judge_options(parser)
    _counters_option(parser)


def _tune(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "tune", "cli_tune:tune", "find the best schedules for a candidate, and write them in")
    parser.add_argument("file", metavar="FILE", help="a .coda file; - reads stdin")
    parser.add_argument("--task", required=True, help="the task that it computes")
    parser.add_argument("--shape", metavar="NAME", help="the shape to tune for, as `tasks` lists them (the first)")
    parser.add_argument("--seconds", type=float, default=120.0, metavar="S", help="of building and measuring (120)")
    parser.add_argument("--out", metavar="FILE", help="write the tuned text there, and the table to stdout")
    parser.add_argument("--fresh", action="store_true", help="do not ask the cache of earlier results")
    _judge_options(parser)


def _regrade(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(
        commands, "regrade", "cli_receipt:regrade", "repeat a receipt's judgement here, and say whether it holds"
    )
    parser.add_argument("receipt", metavar="RECEIPT", help="what `evaluate --receipt` or an export wrote")
    parser.add_argument("--no-measure", action="store_true", help="stop after the checks")
    parser.add_argument("--device", choices=DEVICES, help="where to check and time (auto: a GPU if there is one)")


def _lint(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "lint", "cli_lint:lint", "say whether a task is degenerate, with the evidence")
    parser.add_argument("task", nargs="+", metavar="TASK")


def _tasks(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(
        commands, "tasks", "cli_tasks:tasks", "list the tasks; those that are named with shapes and bounds"
    )
    parser.add_argument("task", nargs="*", metavar="TASK", help="inputs, outputs, shapes and the bound of these alone")
    parser.add_argument("--target", metavar="ARCH", help="the GPU whose bound to give (sm_90)")
    parser.add_argument("--prompts", action="store_true", help="how many tokens the first prompt for each has")
    _runs_option(parser)


def _prompt(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(
        commands, "prompt", "cli_tasks:prompt", "print exactly what a model would be sent, and its tokens"
    )
    parser.add_argument("task", metavar="TASK")
    parser.add_argument("--after", metavar="RUN", help="the next request of this run, not the first of a new one")
    _author_options(parser)
    parser.add_argument("--target", metavar="ARCH", help="the GPU to write for (sm_90)")
    _runs_option(parser)


def _show(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "show", "cli_record:show", "show a run: its attempts, the best, and why it is the best")
    parser.add_argument("run", metavar="RUN", nargs="?", help="a run's id, or its beginning; left out: the latest")
    parser.add_argument(
        "--attempt", type=int, metavar="STEP", help="one attempt in full: prompt, reply, program, findings"
    )
    _runs_option(parser)


def _diff(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "diff", "cli_diff:diff", "show what differs between two candidates, and what it did")
    parser.add_argument("run", metavar="RUN", help="a run's id, its beginning, or latest")
    parser.add_argument("a", metavar="A", help="a step of the run, a candidate's id, or best")
    parser.add_argument("b", metavar="B", help="likewise")
    _runs_option(parser)


def _lessons(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(
        commands, "lessons", "cli_lessons:lessons", "show what was measured to help or to hurt, or prune it"
    )
    parser.add_argument("--task", help="only this task's")
    parser.add_argument("--drop", nargs="+", metavar="ID", help="forget these")
    parser.add_argument("--keep", type=int, metavar="N", help="forget all but the N largest effects (of --task)")
    _runs_option(parser)


def _leaderboard(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(
        commands,
        "leaderboard",
        "cli_record:leaderboard",
        "rank all candidates that passed, measured and modelled apart",
    )
    parser.add_argument("--task", help="only this task")
    _runs_option(parser)


def _export(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "export", "cli_record:export", "write a candidate that passed as a standalone package")
    parser.add_argument(
        "source",
        metavar="RUN|FILE",
        nargs="?",
        help="a run (its best candidate) or a .coda file; left out: the best of --task",
    )
    parser.add_argument("--task", help="the task, where it does not follow from the run")
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder to make; it must not exist yet")
    _judge_options(parser)
    _runs_option(parser)


def _doctor(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    parser = _command(commands, "doctor", "cli_tasks:doctor", "say what this machine can do")
    _runs_option(parser)
