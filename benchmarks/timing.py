"""Samples of run time, and what is made of them: medians, spreads, ratios of interleaved repeats."""

import dataclasses
import math
import statistics
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Sample:
    """One repeat: `evaluations` of something took `wall` seconds by the clock and `cpu` seconds of processor time.

    The processor time is that of the whole process, all its threads together.
    """

    wall: float
    cpu: float
    evaluations: int = 1

    def seconds(self, clock: str) -> float:
        """Time of one evaluation; `clock` is "wall" or "cpu"."""
        if clock not in ("wall", "cpu"):
            raise ValueError(f"clock is 'wall' or 'cpu', not {clock!r}")
        return getattr(self, clock) / self.evaluations


@dataclasses.dataclass(frozen=True)
class Statistics:
    """Median of some repeats, and the quartiles around it.

    Quartiles and not extremes: on a shared machine the slowest repeat says what the neighbours did.
    """

    median: float
    low: float
    high: float
    count: int


def summarise(values: Sequence[float]) -> Statistics:
    """Median and quartiles (the "inclusive" ones, which stay between the smallest and the largest value)."""
    if not values:
        raise ValueError("no repeats to summarise")
    if len(values) == 1:
        return Statistics(values[0], values[0], values[0], 1)
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Statistics(median, low, high, len(values))


def seconds_per_evaluation(samples: Sequence[Sample], clock: str) -> Statistics:
    return summarise([sample.seconds(clock) for sample in samples])


def speed_ratio(ours: Sequence[Sample], theirs: Sequence[Sample], clock: str) -> Statistics:
    """How many times as fast we are, from pairs of repeats made one after the other.

    A busy moment of the machine slows both repeats of a pair, so that the ratio of a pair is steadier than
    the ratio of two medians.
    """
    pairs = list(zip(ours, theirs, strict=False))
    return summarise([b.seconds(clock) / a.seconds(clock) for a, b in pairs])


def loops_for(target: float, one: float, at_most: int = 1_000_000) -> int:
    """How often to run something that takes `one` seconds, to fill about `target` seconds; at least once."""
    if one <= 0.0:
        return at_most
    return max(1, min(at_most, math.ceil(target / one)))


def repeats_for(repeats: int, one: float, budget: float) -> int:
    """How many repeats of `one` seconds fit into `budget` seconds: at most `repeats`, at least two.

    Two, because a figure without a spread cannot be trusted, however slow the thing is.
    """
    if one <= 0.0:
        return repeats
    return min(repeats, max(2, int(budget / one)))
