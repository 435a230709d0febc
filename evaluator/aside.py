"""Work in a thread of its own, with children that nobody else asks meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from coda_synth.evaluator.child import Child
from coda_synth.evaluator.processes import end

Ended = threading.Event
_SLICE_S = 0.1


class Aside:
    """Begins at once. work: is told by its argument when nobody waits for it any more; children: those that it asks."""

    def __init__(self, work: Callable[[Ended], None], children: Callable[[], Iterable[Child]]) -> None:
        self._work, self._children = work, children
        self._ended = Ended()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self._ended)
        except BaseException as error:  # for whoever waits
            self._error = error

    def wait(self, given_up: Ended | None = None) -> None:
        """Until it is done, or nobody wants that any more; raises what it raised."""
        while self._thread.is_alive() and not (given_up and given_up.is_set()):
            self._thread.join(_SLICE_S if given_up else None)
        if self._error is not None:
            raise self._error

    def end(self, patience_s: float = 0.0) -> None:
        """Tells it to stop, and kills what it still asks after so many seconds; harmless when it is done."""
        self._ended.set()
        self._thread.join(patience_s)
        if not self._thread.is_alive():
            return
        while self._thread.is_alive():
            for pid in [child.pid for child in self._children()]:
                if pid is not None:
                    end(pid)
            self._thread.join(_SLICE_S)
        for child in self._children():
            child.close()  # a large process dies slowly: until then it would be taken for a living one
