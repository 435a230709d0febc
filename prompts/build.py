"""Puts the prompt of one request together from plain strings: the stable system text, and the user text.

It knows no type of the compiler or the record; the caller hands in rows and texts, and gets (system, user) back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coda_synth.prompts.render import render

EXAMPLES = 3  # worked programs shown, the longest first: they use the most of the language
OTHERS = 12  # further attempts listed, the latest

Row = tuple[str, str, str, str, str]


def build_prompt(
    words: Sequence[Row],
    hints: Sequence[tuple[str, str, str, str]],
    examples: Mapping[str, str],
    task: Mapping[str, str],
    shapes: Sequence[tuple[str, str, float, float, str]],
    history: Mapping[str, object] | None = None,
    *,
    needs: str = "",
    device: Sequence[str] = (),
    lessons: Sequence[str] = (),
) -> tuple[str, str]:
    """The system text, which stays the same for a whole run, and the user text of one request.

    words: (heading, units, signature, doc, example) for each word of the language, in the table's order.
    hints: (name, legal values, default, meaning) of each schedule hint; needs: what a mainloop asks of a schedule.
    examples: worked programs by the name of their task; the task's own is left out.
    task: name, summary, source (its reference), header (the first line of its @program), outputs, weights, dtype (of
    activations), others (inputs of another dtype), device and checked (the sizes that it is checked with), each a text.
    shapes: (label, sizes, bound in ms, ms of its GEMMs alone, or of what takes longer and is named last).
    history: None before the first attempt, else
      last, best: {"id", "program", "verdict", "report"}; best is None if no attempt passed, last's program "" if the
      reply held none;
      others: one line for every other attempt, oldest first; untried: a line for each move that no program made;
      left: the remaining budget; ask: what to do now.
    device: facts of the part that is written for; lessons: what earlier runs measured. Both lines, both stable.
    Raises TemplateError where a name of `task` is missing or unknown, KeyError for one of an attempt.
    """
    system = render(
        "system",
        language=language_reference(words, hints, needs),
        device=_listed(device),
        lessons=f"# Lessons\n\n{_listed(lessons)}\n\n" if lessons else "",
        examples=_examples(examples, task["name"]),
    )
    user = render("task", **task, shapes="\n".join(_shape(*row) for row in shapes))
    return system, f"{user}\n\n{_feedback(history)}" if history else user


def language_reference(words: Sequence[Row], hints: Sequence[tuple[str, str, str, str]], needs: str = "") -> str:
    """The rules, the hints, and the whole vocabulary, grouped under its headings."""
    lines: list[str] = []
    heading = ""
    for group, units, signature, doc, example in words:
        if group != heading:
            heading = group
            lines += ["", f"### {heading}", ""]
        shown = "" if signature in example else f" As in `{example}`"
        lines.append(f"- `{signature}` [{units}] {doc}{shown}")
    table = "\n".join(f"- `{name}` ({default}): {values}. {_sentence(doc)}" for name, values, default, doc in hints)
    return render("language", words="\n".join(lines).strip(), hints=table, needs=needs)


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _examples(programs: Mapping[str, str], own: str) -> str:
    others = sorted((name for name in programs if name != own), key=lambda name: (-len(programs[name]), name))
    return "\n\n".join(f"{name}:\n\n{_fenced(programs[name])}" for name in others[:EXAMPLES])


def _fenced(program: str) -> str:
    return f"```\n{program.strip()}\n```"


def _shape(label: str, sizes: str, bound: float, alone: float, of: str) -> str:
    return f"- {label}: {sizes}: {of or 'GEMMs alone'} {alone:.4g} ms, bound {bound:.4g} ms"


def _feedback(history: Mapping[str, object]) -> str:
    last: Mapping[str, str] = history["last"]  # type: ignore[assignment]
    best: Mapping[str, str] | None = history["best"]  # type: ignore[assignment]
    others: Sequence[str] = history["others"]  # type: ignore[assignment]
    return render(
        "feedback",
        last_id=last["id"],
        last_verdict=last["verdict"],
        last_program=_fenced(last["program"]) if last["program"] else "(The reply held no program.)",
        last_report=last["report"],
        best=_best(best, last["id"]),
        others=_others(others),
        untried=_listed(history["untried"]),  # type: ignore[arg-type]
        left=str(history["left"]),
        ask=str(history["ask"]),
    )


def _listed(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines) or "None."


def _best(best: Mapping[str, str] | None, last: str) -> str:
    if best is None:
        return "No program has passed yet."
    if best["id"] == last:
        return "It is your last program, below."
    return f"{best['id']}: {best['report']}\n\n{_fenced(best['program'])}"


def _others(lines: Sequence[str]) -> str:
    if not lines:
        return "None."
    left_out = [f"- ({len(lines) - OTHERS} earlier ones are not listed)"] if len(lines) > OTHERS else []
    return "\n".join([*left_out, *(f"- {line}" for line in lines[-OTHERS:])])
