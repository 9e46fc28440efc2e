"""Which noise levels are trained on, how much each counts, and through which ones a sample comes to be.

A noise level sigma goes from 0 (clean) to 1 (noise); the timestep that a model is told is 1000 sigma. Levels are drawn
by their quantile, so that an expert's range, or any other, is drawn from exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist
from typing import Literal

import torch
from torch import Tensor

TRAIN_TIMESTEPS = 1000
"""What a model is told of pure noise."""

SamplingKind = Literal["uniform", "logit_normal", "cosine"]
Weighting = Literal["none", "bell"]

_NORMAL = NormalDist()


@dataclass(frozen=True)
class TimestepDistribution:
    """How noise levels are drawn.

    Attributes:
        kind: before the shift: `uniform`; `logit_normal`, the logistic of a normal number; `cosine`, which is uniform
            in the angle between signal and noise (arXiv:2403.03206, section 3.1).
        shift: `sigma' = shift sigma / (1 + (shift - 1) sigma)`: more noise for larger videos (the same paper, 5.3.2).
        mean, std: of the normal number.
        low, high: levels outside are not drawn.
        weighting: `bell` counts middle levels more, by `exp(-2 ((t - 500) / 1000)^2)` less its least value, with mean 1
            over the shifted levels.
    """

    kind: SamplingKind = "uniform"
    shift: float = 1.0
    mean: float = 0.0
    std: float = 1.0
    low: float = 0.0
    high: float = 1.0
    weighting: Weighting = "none"

    def sigma(self, share: float) -> float:
        """The level below which `share` (0 to 1) of all draws lie."""
        first, last = self.share_below(self.low, whole=True), self.share_below(self.high, whole=True)
        level = self._quantile(first + share * (last - first))
        return min(max(shifted(level, self.shift), self.low), self.high)

    def share_below(self, sigma: float, *, whole: bool = False) -> float:
        """What share of draws lie below a level: of all levels (`whole`), or of those between `low` and `high`."""
        share = self._share(shifted(sigma, 1 / self.shift))
        if whole:
            return share
        first, last = self.share_below(self.low, whole=True), self.share_below(self.high, whole=True)
        return min(max((share - first) / (last - first), 0.0), 1.0)

    def weight(self, sigma: float) -> float:
        """How much a sample at this level counts."""
        if self.weighting == "none":
            return 1.0
        return (_bell(sigma) - self._bell_least) / self._bell_mean

    @cached_property
    def _bell_levels(self) -> list[float]:
        levels = (shifted(1 - step / TRAIN_TIMESTEPS, self.shift) for step in range(TRAIN_TIMESTEPS))
        return [_bell(level) for level in levels]

    @cached_property
    def _bell_least(self) -> float:
        return min(*self._bell_levels, _bell(0.0))

    @cached_property
    def _bell_mean(self) -> float:
        return sum(self._bell_levels) / TRAIN_TIMESTEPS - self._bell_least

    def _quantile(self, share: float) -> float:
        if self.kind == "uniform" or share in (0.0, 1.0):
            return share
        if self.kind == "cosine":
            return 1 - 1 / (math.tan(math.pi * share / 2) + 1)
        return 1 / (1 + math.exp(-(self.mean + self.std * _NORMAL.inv_cdf(share))))

    def _share(self, level: float) -> float:
        if self.kind == "uniform" or level in (0.0, 1.0):
            return level
        if self.kind == "cosine":
            return 2 / math.pi * math.atan(level / (1 - level))
        return _NORMAL.cdf((math.log(level / (1 - level)) - self.mean) / self.std)


def shifted(sigma: float, shift: float) -> float:
    """A level moved towards noise where `shift` is above 1."""
    return min(shift * sigma / (1 + (shift - 1) * sigma), 1.0)


def sampling_levels(steps: int, shift: float) -> Tensor:
    """`[steps + 1]` float64: from pure noise down to 0, shifted; the levels between which a sample takes its steps."""
    return torch.tensor([shifted(1 - step / steps, shift) for step in range(steps + 1)], dtype=torch.float64)


def _bell(sigma: float) -> float:
    return math.exp(-2 * (sigma - 0.5) ** 2)
