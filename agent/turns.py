"""Runs side by side in one process: each in a thread of its own, the judge on the main thread, asked in turn.

Ctrl-C reaches the main thread alone. So what takes long is never done in a run's own thread: the judge works on the
main thread, first come, first served, and an author is asked in a thread that can be left behind. A run only waits for
either, and every wait can be ended from the main thread as Ctrl-C itself would end it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from coda_synth.agent.loop import Judge
    from coda_synth.evaluator.evaluation import Candidate, Evaluation
    from coda_synth.evaluator.trace import Graph

T = TypeVar("T")
_Answer = SimpleQueue[tuple[Any, BaseException | None]]  # its first entry counts; putting one in cannot be broken off
_WAITS = "waits for the judge"


class Turns:
    """What the runs of one command share. `interrupted`: Ctrl-C has come, and nothing new begins."""

    def __init__(self) -> None:
        self._questions: SimpleQueue[Callable[[], None] | None] = SimpleQueue()  # None: a thread has ended
        self._guard = threading.Lock()
        self._open: set[_Answer] = set()
        self.interrupted = False

    def work(self, works: Sequence[Callable[[], T]], jobs: int) -> list[T]:
        """What each came to, in their order, `jobs` at a time; called on the main thread. A work must not raise.

        After Ctrl-C those at work end in order, and those that had not begun are left out.
        """
        left: SimpleQueue[tuple[int, Callable[[], T]]] = SimpleQueue()
        for item in enumerate(works):
            left.put(item)
        ends: dict[int, T] = {}
        threads = [threading.Thread(target=self._thread, args=(left, ends), daemon=True) for _ in range(jobs)]
        try:
            for thread in threads:
                thread.start()
            self._serve(len(threads))
        except KeyboardInterrupt:
            self._interrupt()
            for thread in threads:
                if thread.is_alive():
                    thread.join()
        return [ends[place] for place in sorted(ends)]

    def in_turn(self, ask: Callable[[], T]) -> T:
        """What `ask` gives or raises, called on the main thread after what was asked earlier; KeyboardInterrupt where
        Ctrl-C came first."""
        found: T = self._waited(lambda answer: self._questions.put(lambda: _answer(answer, ask)))
        return found

    def aside(self, ask: Callable[[], T]) -> T:
        """Likewise, called in a thread that is left behind where Ctrl-C comes first."""
        found: T = self._waited(
            lambda answer: threading.Thread(target=_aside, args=(answer, ask), name="author", daemon=True).start()
        )
        return found

    def _waited(self, begin: Callable[[_Answer], None]) -> Any:
        answer: _Answer = SimpleQueue()
        with self._guard:
            if self.interrupted:
                raise KeyboardInterrupt
            self._open.add(answer)
        begin(answer)
        value, error = answer.get()
        with self._guard:
            self._open.discard(answer)
        if error is not None:
            raise error
        return value

    def _thread(self, left: SimpleQueue[tuple[int, Callable[[], T]]], ends: dict[int, T]) -> None:
        try:
            while not self.interrupted:
                place, work = left.get_nowait()
                ends[place] = work()
        except Empty:
            pass
        finally:
            self._questions.put(None)

    def _serve(self, threads: int) -> None:
        while threads:
            question = self._questions.get()
            if question is None:
                threads -= 1
            else:
                question()

    def _interrupt(self) -> None:
        with self._guard:
            self.interrupted = True
            for answer in self._open:
                answer.put((None, KeyboardInterrupt()))


def _answer(answer: _Answer, ask: Callable[[], Any]) -> None:
    try:
        answer.put((ask(), None))
    except Exception as error:  # raised where it is waited for
        answer.put((None, error))


def _aside(answer: _Answer, ask: Callable[[], Any]) -> None:
    """In a thread of its own, where Ctrl-C is what ended a wait of `ask` for the main thread."""
    try:
        _answer(answer, ask)
    except KeyboardInterrupt as error:
        answer.put((None, error))


class InTurn:
    """The shared judge as one run sees it. `waited`: seconds for which its questions waited for those of other runs,
    which count for no budget."""

    def __init__(self, judge: Judge, turns: Turns) -> None:
        self._judge, self._turns = judge, turns
        self.waited = 0.0

    def evaluate(
        self,
        candidate: Candidate,
        *,
        seed: int | None = None,
        measure: bool = True,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        if on_stage is not None:
            on_stage(_WAITS)
        return self._asked(lambda: self._judge.evaluate(candidate, seed=seed, measure=measure, on_stage=on_stage))

    def trace(self, task: str) -> Graph:
        return self._asked(lambda: self._judge.trace(task))

    def _asked(self, ask: Callable[[], T]) -> T:
        asked = time.monotonic()

        def now() -> T:
            self.waited += time.monotonic() - asked
            return ask()

        return self._turns.in_turn(now)
