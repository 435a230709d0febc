"""What the candidate child saw when it timed one shape, as data. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_WORDS = 1 << 16  # characters of notes at most


@dataclass(frozen=True, slots=True)
class Sample:
    """Milliseconds. low, high: the 95 % confidence interval of the median."""

    median_ms: float
    low_ms: float
    high_ms: float
    repeats: int


@dataclass(frozen=True, slots=True)
class Measured:
    """samples, graph: by contestant, "candidate" among them. launch_ms: by call, each of its launches in their order;
    empty where they could not be seen; between_ms: what passes between them.

    fingerprints: of the outputs of the last timed runs, one mapping for each set of inputs. reruns: the same of runs
    afterwards, untimed and from poisoned buffers. timer: how the time was told.
    """

    samples: Mapping[str, Sample]
    graph: Mapping[str, Sample]
    launch_ms: Mapping[str, tuple[float, ...]]
    prepare_ms: float
    fingerprints: tuple[Mapping[str, int], ...]
    reruns: tuple[Mapping[str, int], ...]
    notes: tuple[str, ...] = ()
    clocks: str = ""
    timer: str = ""
    between_ms: float = 0.0

    def fault(self) -> str:
        """What makes it no measurement, or "": it comes from a process that has run a candidate."""
        samples = [*self.samples.values(), *self.graph.values()]
        if "candidate" not in self.samples or (self.graph and "candidate" not in self.graph):
            return "nothing is said of the candidate"
        if not all(0 < s.low_ms <= s.median_ms <= s.high_ms < math.inf and s.repeats > 0 for s in samples):
            return "a time is no time, or lies outside of its interval"
        if not self.fingerprints or len(self.fingerprints) != len(self.reruns):
            return "outputs and reruns are not as many"
        spans = [*self.launch_ms.values(), (self.prepare_ms, self.between_ms)]
        if not all(each and all(0 <= ms < math.inf for ms in each) for each in spans):
            return "a launch takes no time that there is"
        return "" if sum(map(len, self.notes)) + len(self.clocks) + len(self.timer) < _WORDS else "it talks too much"


@dataclass(frozen=True, slots=True)
class Parts:
    """bare_ms: by call, its GEMM with an epilogue that only stores the product. whole_ms: the same with its own
    epilogue, timed by turns with those. copy_bytes_per_s, matmul_flops_per_s: what the device at hand reaches with a
    large copy and a large product."""

    bare_ms: Mapping[str, float]
    whole_ms: Mapping[str, float]
    copy_bytes_per_s: float
    matmul_flops_per_s: float
    notes: tuple[str, ...] = ()

    def fault(self) -> str:
        """As Measured's."""
        rates = self.copy_bytes_per_s, self.matmul_flops_per_s
        if not all(0 < x < math.inf for x in (*rates, *self.bare_ms.values())):
            return "a rate or a time is none"
        if not all(0 <= x < math.inf for x in self.whole_ms.values()):
            return "a time is none"
        return "" if sum(map(len, self.notes)) < _WORDS else "it talks too much"


def summary(times: Sequence[float]) -> Sample:
    """The median and its 95 % confidence interval by order statistics, which assume no distribution."""
    ordered, n = sorted(times), len(times)
    middle = ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2
    reach = 0.98 * math.sqrt(n)  # 1.96 standard deviations of a binomial count at one half
    low, high = max(0, math.floor(n / 2 - reach)), min(n - 1, math.ceil(n / 2 + reach) - 1)
    return Sample(middle, ordered[low], ordered[max(high, low)], n)
