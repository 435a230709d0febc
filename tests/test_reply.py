"""What counts as the one program of a reply, and what its author is told otherwise."""

from __future__ import annotations

import pytest
from coda_synth.agent.reply import NoProgram, extract, nothing_left
from hypothesis import given
from hypothesis import strategies as st

PROGRAM = '"""Why."""\n\n@kernel\ndef k(): ...\n\n@program\ndef t(): ...\n'


@pytest.mark.parametrize(
    "reply",
    [
        f"```\n{PROGRAM}```",
        f"```coda\n{PROGRAM}```\n",
        f"I fold the norm.\n\n```python\n{PROGRAM}```\nIt saves a pass.",
        f"~~~~\n{PROGRAM}~~~~\n",
        f"````\n{PROGRAM}````\n",
        f"```\r\n{PROGRAM}```\r\n".replace("\n", "\r\n").replace("\r\r", "\r"),
        f"First a part:\n```\n@kernel\ndef k(): ...\n```\nand the whole:\n```\n{PROGRAM}```",
        PROGRAM,
        f"\n\n{PROGRAM}\n\n",
        f"\ufeff{PROGRAM}",
    ],
)
def test_one_program_is_found(reply: str) -> None:
    assert extract(reply) == PROGRAM


def test_a_single_block_is_the_program_whatever_it_lacks() -> None:
    """The language then says what is missing, which is more precise than anything to be said here."""
    assert extract("```\n@kernel\ndef k(): ...\n```") == "@kernel\ndef k(): ...\n"


def test_a_fence_within_a_longer_fence_is_text() -> None:
    text = f'"""\n```\n"""\n{PROGRAM}'
    assert extract(f"````\n{text}````") == text


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("", "the reply was empty"),
        (" \n ", "the reply was empty"),
        ("I cannot do better.", "it holds no ``` block; send exactly one"),
        (f"Here:\n{PROGRAM}", "stands in it without a fence"),
        (f"Here:\n```\n{PROGRAM}", "opened in line 2 is never closed"),
        (f"```\n{PROGRAM}```\n\n```\n{PROGRAM}```", r"2 blocks hold a program \(lines 1, 11\)"),
        ("```\na\n```\n```\nb\n```", "none of the 2 blocks holds a line @program"),
        ("```\n\n```", "the block in line 1 is empty"),
    ],
)
def test_anything_else_is_a_precise_correction(reply: str, said: str) -> None:
    with pytest.raises(NoProgram, match=said):
        extract(reply)


@given(st.text(alphabet="`~\n@program ab\r\ud800", max_size=80))
def test_any_reply_gives_a_storable_program_or_one_line(reply: str) -> None:
    try:
        program = extract(reply)
    except NoProgram as correction:
        assert str(correction) and "\n" not in str(correction)
    else:
        assert program.strip() and "\r" not in program
        program.encode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("done: the GEMM is all that is left", "the GEMM is all that is left"),
        ("\n`done: nothing is left`\n", "nothing is left"),
        ("Done: I rewrote it, here is the improved kernel:\n```\n@kernel\ndef f(): ...\n```", None),
        (f"done: see this\n\n{PROGRAM}", None),
        ("it is done: nothing", None),
    ],
)
def test_only_a_reply_without_code_says_that_nothing_is_left(text: str, why: str | None) -> None:
    assert nothing_left(text) == why
