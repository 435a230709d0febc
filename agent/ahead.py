"""A question asked in a thread of its own, so that an author writes while an earlier candidate is judged."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from coda_synth.agent.provider import Reply


class Ahead:
    """The answer to come. A daemon thread: who presses Ctrl-C does not wait for a slow author."""

    def __init__(self, answer: Callable[[], Reply]) -> None:
        self._answer = answer
        self._reply: Reply | None = None
        self._error: BaseException | None = None
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="author", daemon=True)
        self._thread.start()

    def wait(self) -> tuple[Reply, float]:
        """The reply, and how many seconds of asking for it nobody waited for; raises what asking raised."""
        hidden = time.monotonic() - self._started
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._reply is not None
        return self._reply, hidden

    def _run(self) -> None:
        try:
            self._reply = self._answer()
        except BaseException as error:  # raised where it is waited for
            self._error = error
