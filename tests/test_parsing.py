"""Trees of Python text, of several threads at once."""

from __future__ import annotations

import gc
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest
from coda_synth.coda_api.parsing import parse_expression, parse_statements

NESTED = f"x = {'(' * 60}1{')' * 60}\ny = {' + '.join(f'f(a[{n}])' for n in range(50))}\n"


class Ends:
    """Gives other threads a turn where the collector finds it, as any finalizer may."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        for _ in range(20):
            pass


@pytest.fixture
def collected_often() -> Iterator[None]:
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    sys.setswitchinterval(1e-6)
    gc.set_threshold(5, 2, 2)
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)


def test_threads_parse_at_once(collected_often: None) -> None:
    """With `ast.parse` itself about 200 of these 1,200 end in a SystemError on Python 3.11.7."""
    wrong = []

    def work() -> None:
        for n in range(300):
            for _ in range(5):
                Ends()
            try:
                assert len(parse_statements(NESTED).body) == 2 and parse_expression(f"N / {n}")
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_odd_escapes_are_no_noise() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parse_statements(r"x = '\d'")
