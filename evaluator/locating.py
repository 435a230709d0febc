"""Finds the call at fault where a process died, hung or met an error of its device: by running launch after launch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from coda_synth.evaluator.child import Child, ChildFailure, ChildRaised, JudgeError

STEP_S = 20.0  # for one launch, which takes far less unless it hangs
_FAILED = (ChildFailure, ChildRaised, JudgeError)  # the last where no fresh process starts: the verdict stands without


def guilty_call(worker: Child, asked: Mapping[str, Any], limit_s: float) -> str | None:
    """The call whose launch fails when a case runs again in a fresh process, one launch a question. None where it
    fails before the first launch, or not this time, for which its launches have the limit of a case: a fresh process
    takes seconds to start, which are not theirs. asked: what names the case. Leaves no spoilt process behind."""
    seconds = min(limit_s, STEP_S)
    worker.close()
    try:
        calls = [str(call) for call in worker.request("steps", seconds, asked).data["calls"]]
    except (*_FAILED, LookupError, TypeError):  # the last two: an answer that is none
        worker.close()
        return None
    if len(calls) == 1:  # nothing else can have failed
        return calls[0]
    deadline = time.monotonic() + limit_s
    for number, call in enumerate(calls):
        if time.monotonic() > deadline:  # no program has so many launches
            worker.close()
            return None
        try:
            worker.request("step", seconds, {**asked, "number": number})
        except _FAILED:
            worker.close()
            return call
    return None
