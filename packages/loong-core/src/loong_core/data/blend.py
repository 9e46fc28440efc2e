"""Which source each sample comes from.

Source `d` with share `w_d` owns the moments `(k + 1/2) / w_d`, `k = 0, 1, ...`, of a clock that ticks once a sample;
the samples of all sources in the order of their moments are the blend. After any number of samples each source has had
its share to within one sample or so, nothing is random, and any stretch can be computed without what came before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_STRETCH = 1 << 14


class Blend:
    """The order in which sources take turns.

    Args:
        shares: positive numbers, one a source; only their ratios matter.
    """

    def __init__(self, shares: Sequence[float]) -> None:
        if not shares or min(shares) <= 0:
            raise ValueError(f"shares of a blend must be positive: {list(shares)}")
        total = float(sum(shares))
        self.shares = [float(share) / total for share in shares]
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
        margin = len(self.shares) + 1
        begin, end = float(max(first - margin, 0)), float(first + _STRETCH + margin)
        sources, draws, moments, before = [], [], [], 0
        for source, share in enumerate(self.shares):
            low = self._draws_before(share, begin)
            high = self._draws_before(share, end)
            own = np.arange(low, high, dtype=np.int64)
            before += low
            sources.append(np.full(len(own), source, dtype=np.int64))
            draws.append(own)
            moments.append((own + 0.5) / share)
        all_sources, all_draws = np.concatenate(sources), np.concatenate(draws)
        order = np.lexsort((all_sources, np.concatenate(moments)))[first - before :][:_STRETCH]
        self._first, self._sources, self._draws = first, all_sources[order], all_draws[order]

    @staticmethod
    def _draws_before(share: float, moment: float) -> int:
        """How many of a source's moments lie before `moment`, by the same arithmetic that sorts them."""
        count = max(int(moment * share), 0)
        while (count + 0.5) / share < moment:
            count += 1
        while count > 0 and (count - 0.5) / share >= moment:
            count -= 1
        return count
