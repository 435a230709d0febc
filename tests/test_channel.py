"""Parent and child over the real channel: whatever a child does, it is named, and the next question is answered."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from coda_synth.evaluator.channel import BadFrame, Message, decode, decode_prefix, encode
from coda_synth.evaluator.child import Child, ChildCrashed, ChildRaised, ChildTimeout, JudgeError

HERE = Path(__file__).resolve().parent


@pytest.fixture
def child(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    made = Child("channel_child", memory=300 << 20)
    yield made
    made.close()


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def gone(pid, seconds=5.0):
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def works(child):
    return child.request("echo", 20, {"text": "again"}).data["said"] == "again"


def test_data_and_buffers_go_and_come_back(child):
    big = os.urandom(3 << 20)
    answer = child.request("echo", 20, {"text": "ü\n"}, (big, b"", b"ab"))
    assert answer.data == {"said": "ü\n", "count": 3}
    assert [bytes(b) for b in answer.blobs] == [big[::-1], b"", b"ba"]


def test_a_child_stays_warm_between_questions(child):
    assert works(child)
    pid = child.pid
    assert works(child) and child.pid == pid


def test_a_handler_that_raises_is_an_answer_and_the_child_lives(child):
    with pytest.raises(ChildRaised) as caught:
        child.request("fail", 20)
    assert caught.value.raised.kind == "ZeroDivisionError" and caught.value.raised.message == "on purpose"
    assert "channel_child.py" in caught.value.raised.trace
    pid = child.pid
    assert works(child) and child.pid == pid


def test_an_unknown_question_is_an_answer_too(child):
    with pytest.raises(ChildRaised, match="KeyError"):
        child.request("no_such_thing", 20)
    assert works(child)


def test_a_hang_is_a_timeout_and_the_process_is_gone(child):
    assert works(child)
    pid, start = child.pid, time.monotonic()
    with pytest.raises(ChildTimeout, match="within the limit of 1 s"):
        child.request("hang", 1)
    assert time.monotonic() - start < 5
    assert gone(pid) and works(child) and child.pid != pid


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGKILL"])
def test_a_killed_child_is_named_by_its_signal(child, name):
    with pytest.raises(ChildCrashed, match=name):
        child.request("die", 20, {"signal": name})
    assert works(child)


@pytest.mark.parametrize("code", [0, 3])
def test_an_early_exit_is_a_crash_also_with_code_0(child, code):
    with pytest.raises(ChildCrashed, match=f"exited with code {code}") as caught:
        child.request("leave", 20, {"code": code})
    assert "leaving early" in caught.value.tail
    assert works(child)


def test_a_flood_of_output_neither_blocks_nor_confuses(child):
    assert child.request("flood", 60, {"lines": 20_000}).data == {"printed": 20_000}
    assert works(child)


@pytest.mark.parametrize("text", ["00", "ff", "7b7d0a", "10000000000000"])
def test_garbage_on_the_channel_ends_the_child(child, text):
    with pytest.raises(ChildCrashed, match="nonce"):
        child.request("garbage", 20, {"hex": text})
    assert works(child)


def test_the_memory_limit_is_named(child):
    with pytest.raises(ChildCrashed, match="memory limit"):
        child.request("eat", 60)
    assert works(child)


def test_a_grandchild_dies_with_the_group(child):
    pid = child.request("breed", 20).data["child"]
    assert alive(pid)
    child.close()
    assert gone(pid)


def test_an_answer_nobody_fetched_is_dropped(child):
    child.post("echo", 20, {"text": "first"})
    assert child.request("echo", 20, {"text": "second"}).data["said"] == "second"


def test_132_a_child_that_raised_while_nobody_waited_is_not_asked_again(child):
    """A GPU's context after an illegal address would fail the next candidate."""
    assert works(child)
    spoilt = child.pid
    child.post("fail", 20)
    child.forget(20)
    assert child.pid is None and gone(spoilt) and works(child)
    child.post("fail", 20)
    spoilt = child.pid
    assert works(child) and child.pid != spoilt


def test_136_an_interrupted_question_leaves_no_half_of_it(child):
    """Ctrl-C while a child hangs is no wait for its limit, neither then nor in the next question."""
    assert works(child)
    timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        child.request("hang", 60)
    assert child.pid is None and not child.busy and works(child)
    assert time.monotonic() - start < 10


def test_no_descriptor_and_no_process_is_left(child):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        assert works(child)
        pid = child.pid
        child.close()
        assert gone(pid)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_that_does_not_start_is_no_verdict(child, monkeypatch):
    monkeypatch.setenv("CHANNEL_CHILD_STILLBORN", "1")
    with pytest.raises(JudgeError, match="(?s)does not start.*no reason to live"):
        child.request("echo", 20, {"text": ""})


@pytest.mark.parametrize("how", ["exit", "SIGTERM", "SIGKILL", "SIGINT"])
@pytest.mark.parametrize("busy", [False, True])
def test_no_child_outlives_its_parent(how, busy):
    program = textwrap.dedent(f"""
        import os, sys, time
        from coda_synth.evaluator.child import Child
        child = Child("channel_child")
        child.request("echo", 20, {{"text": ""}})
        if {busy}:
            child.post("hang", 60)
        print(child.pid, flush=True)
        if {how!r} == "exit":
            sys.exit()
        time.sleep(60)
    """)
    path = os.pathsep.join((str(HERE), str(HERE.parent)))
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": path},
    )
    pid = int(parent.stdout.readline())
    assert how == "exit" or alive(pid)
    if how != "exit":
        os.kill(parent.pid, getattr(signal, how))
    parent.wait(20)
    parent.stdout.close()
    assert gone(pid)


def test_a_frame_with_a_foreign_nonce_or_torn_sizes_is_refused():
    nonce, other = b"n" * 16, b"m" * 16
    prefix, *rest = encode(Message({"a": 1}, (b"xyz",)), nonce)
    with pytest.raises(BadFrame):
        decode_prefix(prefix, other)
    total, header = decode_prefix(prefix, nonce)
    body = bytearray(b"".join(rest))
    assert total == len(body) and decode(body, header).data == {"a": 1}
    with pytest.raises(BadFrame):
        decode(body[:-1], header)


@pytest.mark.parametrize("head", [b"[" * 200_000, b'{"data": {}, "blobs": [Infinity], "tag": ""}', b'{"data": {}}'])
def test_a_header_that_is_none_is_a_bad_frame(head: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(bytearray(head), len(head))
