"""Prompts: strict templates, a reference that says every word of the table, examples of other operators only."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from coda_synth.agent import prompting
from coda_synth.agent.prompting import language
from coda_synth.coda_api.reader import read
from coda_synth.coda_api.schedule import ALLOWED, HINTS, NEEDS, Schedule, hint_table, mainloop_fault
from coda_synth.coda_api.words import WORDS
from coda_synth.prompts.build import OTHERS, build_prompt, language_reference
from coda_synth.prompts.render import TemplateError, fill, render
from coda_synth.tasks.catalog import task, task_names, worked_candidate

ROOT = Path(__file__).parent.parent
ROWS = [
    (w.group.value, ", ".join(sorted(p.value for p in w.places)), w.signature, w.explained, w.example) for w in WORDS
]
TASK = {
    "name": "linear_swiglu",
    "summary": "act = silu(x w_gate^T) * (x w_up^T)",
    "source": "def reference(x): return {'act': x}  # braces {{like}} these stay",
    "header": 'def linear_swiglu(x: Tensor["T", "D"]):',
    "outputs": 'act ["T", "F"] (bfloat16)',
    "weights": "w_gate, w_up",
    "dtype": "bfloat16",
    "others": "",
    "device": "H200",
    "checked": "T takes 1, 5, 37; F takes 1, 3",
}
SHAPES = [
    ("llama3-8b", "T=8192, D=4096, F=14336", 1.9444, 2.442, ""),
    ("odd", "T=7919, D=3000, F=8008", 0.771, 0.966, "least bytes"),
]


def prompt(history: dict[str, Any] | None = None, **changed: str) -> tuple[str, str]:
    programs = {name: worked_candidate(name) for name in task_names()}
    return build_prompt(ROWS, hint_table(), programs, {**TASK, **changed}, SHAPES, history)


def attempt(name: str, verdict: str = "REJECTED") -> dict[str, str]:
    return {"id": name, "program": f"# program {name}\n", "verdict": verdict, "report": f"report of {name}"}


def test_a_missing_an_unused_and_a_wrong_name_are_errors() -> None:
    assert fill("a {{b}} c", {"b": "{{d}}"}) == "a {{d}} c"
    with pytest.raises(TemplateError, match="the template: b is missing; d is given but not used"):
        fill("a {{b}} c", {"d": "x"})
    with pytest.raises(TemplateError, match="b is no text"):
        fill("{{b}}", {"b": 3})  # type: ignore[dict-item]
    with pytest.raises(TemplateError, match="task: checked is missing; .*name is missing"):
        render("task")
    with pytest.raises(TemplateError, match="task: extra is given but not used"):
        prompt(extra="x")


def test_the_language_reference_says_every_word_once_under_its_heading() -> None:
    text = language_reference(ROWS, hint_table(), NEEDS)
    for word in WORDS:
        assert f"`{word.signature}`" in text and word.doc in text
        assert word.example in text or word.signature in word.example
        assert text.count(f"### {word.group.value}\n") == 1


def test_the_language_reference_says_every_hint_with_its_values_and_default() -> None:
    text = language_reference(ROWS, hint_table(), NEEDS)
    assert tuple(ALLOWED) == HINTS
    for name, values in ALLOWED.items():
        assert f"- `{name}` ({getattr(Schedule(), name)}): {', '.join(map(str, values))}." in text
    assert NEEDS in text


@pytest.mark.parametrize(
    ("hints", "said"),
    [
        ({"block_n": 256}, "128 x 128 or 64 x 256"),
        ({"warps": 16}, "8 warps"),
        ({"stages": 1}, "two stages"),
        ({"block_m": 32}, "64 or more"),
        ({}, ""),
        ({"block_m": 64, "block_n": 256}, ""),
    ],
)
def test_what_a_mainloop_needs_is_refused_where_it_is_missing(hints: dict[str, int], said: str) -> None:
    found = mainloop_fault(Schedule(**{"block_n": 128, "mainloop": "pingpong", **hints}))
    assert said in found and bool(found) == bool(said)


def test_the_system_text_depends_on_the_task_by_its_examples_only() -> None:
    first, second = prompt()[0], prompt(attempt_history())[0]
    assert first == second
    assert "def linear_swiglu(" not in first
    shown = [block for block in first.split("```\n") if "@program" in block and "def " in block]
    assert len(shown) == 3
    assert all(read(block.split("```")[0]).docstring for block in shown)
    own = re.findall(r"def (\w+)\(", first.rpartition("# Worked programs")[2])
    longest = next(name for name in own if name in task_names())
    other = prompt(name=longest)[0]
    assert f"def {longest}(" not in other


def test_lessons_stand_where_there_are_any() -> None:
    programs = {name: worked_candidate(name) for name in task_names()}
    told = build_prompt(ROWS, hint_table(), programs, TASK, SHAPES, lessons=("stages=4: 1.2x faster",))[0]
    assert "# Lessons\n\n- stages=4: 1.2x faster\n\n# Worked programs" in told and "# Lessons" not in prompt()[0]


def attempt_history(best: dict[str, str] | None = None, others: tuple[str, ...] = ()) -> dict[str, Any]:
    more = {"untried": ["fewer launches"], "left": "3 of 6 attempts.", "ask": "Send one program."}
    return {"last": attempt("aaa"), "best": best, "others": others, **more}


def test_the_task_text_gives_reference_header_and_bounds() -> None:
    user = prompt()[1]
    assert TASK["source"] in user and TASK["header"] in user
    assert "- llama3-8b: T=8192, D=4096, F=14336: GEMMs alone 2.442 ms, bound 1.944 ms" in user
    assert "least bytes 0.966 ms, bound 0.771 ms" in user
    assert "What was tried" not in user and "(T takes 1, 5, 37; F takes 1, 3)" in user


def test_feedback_shows_the_last_the_best_and_a_line_for_every_other() -> None:
    user = prompt(attempt_history(attempt("bbb", "PASSED"), ("ccc: INCORRECT", "ddd: PASSED, 2100 us")))[1]
    assert "# program aaa" in user and "report of aaa" in user and "(aaa): REJECTED" in user
    assert "bbb: report of bbb" in user and "# program bbb" in user
    assert "- ccc: INCORRECT\n- ddd: PASSED, 2100 us" in user


def test_feedback_without_a_best_and_with_the_last_as_best() -> None:
    assert "No program has passed yet." in prompt(attempt_history())[1]
    same = prompt(attempt_history(attempt("aaa", "PASSED")))[1]
    assert "It is your last program, below." in same and same.count("# program aaa") == 1


def test_a_reply_without_a_program_is_said_to_be_one() -> None:
    history = {**attempt_history(), "last": {**attempt("aaa", "no program"), "program": ""}}
    assert "(The reply held no program.)" in prompt(history)[1]


def test_long_histories_are_cut_and_say_so() -> None:
    user = prompt(attempt_history(others=tuple(f"line {i}" for i in range(OTHERS + 5))))[1]
    assert "(5 earlier ones are not listed)" in user and "- line 4\n" not in user and "- line 16" in user


def test_the_page_of_the_language_is_what_a_model_is_told() -> None:
    page = ROOT / "docs" / "language.md"
    if os.environ.get("UPDATE_GOLDEN"):
        page.write_text(language(), encoding="utf-8")
    assert page.read_text(encoding="utf-8") == language(), "UPDATE_GOLDEN=1 writes it anew"
    assert language().strip() in prompting.prompt(task("linear_nt")).system


def test_the_operator_of_the_docs_is_a_sound_task_for_which_a_kernel_is_found(tmp_path: Path) -> None:
    """In a copy of the project, without a worked candidate of its own."""
    text = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    for folder in ("agent", "coda_api", "coda_synth", "evaluator", "prompts", "runs", "tasks"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyproject.toml").touch()
    name = re.search(r'name="(\w+)"', text)[1]  # type: ignore[index]
    (tmp_path / "tasks" / f"{name}.py").write_text(text, encoding="utf-8")
    catalog = tmp_path / "tasks" / "catalog.py"
    catalog.write_text(catalog.read_text().replace('"linear_nn",', f'"linear_nn",\n        "{name}",', 1))
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    for asked in (["lint", name], ["synth", name, "--attempts", "1"]):
        command = [sys.executable, "-m", "coda_synth", *asked]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout
