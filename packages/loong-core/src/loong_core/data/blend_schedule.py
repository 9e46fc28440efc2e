"""A blend whose proportions change as training goes on: mid-training leans towards its best data at the end.

As in `Blend`, source `d` owns moments of a clock that ticks once a sample: those at which its accumulated share
`W_d(t) = integral of w_d` passes `k + 1/2`. Between two points of the schedule the shares change linearly, so `W_d` is
a parabola there and its moments have a closed form: any stretch can be computed without what came before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_STRETCH = 1 << 14
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class BlendPoint:
    """The proportions at one moment of a run.

    Attributes:
        sample: how many samples were consumed by then.
        shares: one number of 0 or more a source; only their ratios matter.
    """

    sample: int
    shares: tuple[float, ...]


class ScheduledBlend:
    """The order in which sources take turns; the interface is `Blend`'s.

    Args:
        points: in order of `sample`. Before the first and after the last the proportions stay as they are there.

    Raises:
        ValueError: no points, points out of order, or shares that are negative, all zero, or of unlike number.
    """

    def __init__(self, points: Sequence[BlendPoint]) -> None:
        if not points or any(later.sample <= earlier.sample for earlier, later in pairwise(points)):
            raise ValueError("a blend's schedule needs points of rising sample numbers")
        if any(min(point.shares) < 0 or sum(point.shares) <= 0 for point in points):
            raise ValueError("a blend's shares must be 0 or more, and not all 0")
        if len({len(point.shares) for point in points}) > 1:
            raise ValueError("every point of a blend's schedule names a share for every source")
        self.shares = [[point.sample, *point.shares] for point in points]
        shares = np.array([point.shares for point in points], np.float64)
        shares /= shares.sum(axis=1, keepdims=True)
        # Breakpoints of the shares, from sample 0 on: t [points], w [points, sources], accumulated W [points, sources].
        times = np.array([point.sample for point in points], np.float64)
        if times[0] > 0:
            times, shares = np.concatenate([[0.0], times]), np.concatenate([shares[:1], shares])
        self._times, self._shares = times, shares
        steps = np.diff(times)[:, None] * (shares[:-1] + shares[1:]) / 2
        self._accumulated = np.concatenate([np.zeros((1, shares.shape[1])), np.cumsum(steps, axis=0)])
        self._slopes = np.concatenate(
            [np.diff(shares, axis=0) / np.diff(times)[:, None], np.zeros((1, shares.shape[1]))]
        )
        self._first = -1
        self._sources: NDArray[np.int64] = np.zeros(0, np.int64)
        self._draws: NDArray[np.int64] = self._sources

    def source_of(self, sample: int) -> tuple[int, int]:
        """Source of the `sample`-th sample, and how many samples that source gave before it."""
        if not self._first <= sample < self._first + len(self._sources):
            self._compute(sample // _STRETCH * _STRETCH)
        place = sample - self._first
        return int(self._sources[place]), int(self._draws[place])

    def _compute(self, first: int) -> None:
        """Sources and draws of samples `first` to `first + _STRETCH`."""
        count = self._shares.shape[1]
        begin, end = float(max(first - count - 1, 0)), float(first + _STRETCH + count + 1)
        sources, draws, moments, before = [], [], [], 0
        for source in range(count):
            low, high = (self._draws_before(source, moment) for moment in (begin, end))
            own = np.arange(low, high, dtype=np.int64)
            before += low
            sources.append(np.full(len(own), source, dtype=np.int64))
            draws.append(own)
            moments.append(self._moments(source, own))
        all_sources, all_draws = np.concatenate(sources), np.concatenate(draws)
        order = np.lexsort((all_sources, np.concatenate(moments)))[first - before :][:_STRETCH]
        self._first, self._sources, self._draws = first, all_sources[order], all_draws[order]

    def _moments(self, source: int, draws: NDArray[np.int64]) -> Floats:
        """When `W` of a source passes `draws + 1/2`."""
        wanted = draws + 0.5
        segment = np.searchsorted(self._accumulated[:, source], wanted, side="left") - 1
        segment = np.clip(segment, 0, len(self._times) - 1)
        share, slope = self._shares[segment, source], self._slopes[segment, source]
        rest = wanted - self._accumulated[segment, source]
        # rest = share * t + slope * t^2 / 2, solved in the form that has no cancellation.
        root = np.sqrt(np.maximum(share * share + 2 * slope * rest, 0.0))
        return self._times[segment] + 2 * rest / (share + root)

    def _draws_before(self, source: int, moment: float) -> int:
        """How many of a source's moments lie before `moment`, by the same arithmetic that sorts them."""
        segment = int(np.searchsorted(self._times, moment, side="right")) - 1
        passed = moment - self._times[segment]
        total = self._accumulated[segment, source] + passed * (
            self._shares[segment, source] + self._slopes[segment, source] * passed / 2
        )
        count = max(int(total), 0)
        while self._lies_before(source, count, moment):
            count += 1
        while count > 0 and not self._lies_before(source, count - 1, moment):
            count -= 1
        return count

    def _lies_before(self, source: int, draw: int, moment: float) -> bool:
        last = self._shares[-1, source]
        if last == 0 and draw + 0.5 > self._accumulated[-1, source]:
            return False  # the source has run out of its share for good
        return bool(self._moments(source, np.array([draw], np.int64))[0] < moment)
