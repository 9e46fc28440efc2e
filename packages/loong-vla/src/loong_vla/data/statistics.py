"""Statistics of states and actions, and normalisation by them.

The form is that of lerobot's `stats.json`: for each feature `mean`, `std`, `min`, `max`, quantiles `q01` ... `q99`,
`count`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loong_core.errors import Fault

QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}
EPS = 1e-8
"""What lerobot adds to a standard deviation."""

Statistics = dict[str, NDArray[np.float64]]
"""Of one feature: each statistic's name to `[width]` (`count`: `[1]`)."""

FeatureStatistics = dict[str, Statistics]
"""Statistics by feature."""

Constant = Literal["stop", "centre"]

_NEEDS = {"MEAN_STD": ("mean", "std"), "QUANTILES": ("q01", "q99"), "MIN_MAX": ("min", "max"), "IDENTITY": ()}


def compute_statistics(values: NDArray) -> Statistics:
    """Exact statistics of `[frames, width]`."""
    wide = values.astype(np.float64)
    found = {
        "mean": wide.mean(0),
        "std": wide.std(0),
        "min": wide.min(0),
        "max": wide.max(0),
        "count": np.array([len(wide)], np.float64),
    }
    return found | dict(zip(QUANTILES, np.quantile(wide, list(QUANTILES.values()), axis=0), strict=True))


def pool_statistics(parts: Sequence[Statistics]) -> Statistics:
    """Statistics of several datasets together; exact, but for quantiles, which are averaged by frames."""
    if len(parts) == 1:
        return parts[0]
    counts = np.array([float(part["count"][0]) for part in parts])
    shares = (counts / counts.sum())[:, None]

    def stacked(name: str) -> NDArray[np.float64]:
        return np.stack([part[name] for part in parts])

    mean = (shares * stacked("mean")).sum(0)
    spread = (shares * (stacked("std") ** 2 + (stacked("mean") - mean) ** 2)).sum(0)
    found = {
        "mean": mean,
        "std": np.sqrt(spread),
        "min": stacked("min").min(0),
        "max": stacked("max").max(0),
        "count": np.array([counts.sum()]),
    }
    quantiles = [name for name in QUANTILES if all(name in part for part in parts)]
    return found | {name: (shares * stacked(name)).sum(0) for name in quantiles}


def read_statistics(values: Mapping[str, Any]) -> Statistics:
    """A feature's entry of `stats.json`."""
    return {name: np.atleast_1d(np.asarray(each, np.float64)) for name, each in values.items()}


def statistics_faults(
    where: str, feature: str, found: Mapping[str, Any] | None, mode: str, width: int, constant: Constant = "stop"
) -> list[Fault]:
    """What keeps statistics from normalising a feature.

    Args:
        where: the dataset.
        feature: its name.
        found: its entry of `stats.json`, None if it has none.
        mode: how it is normalised.
        width: how many numbers it has.
        constant: `stop` if numbers that never change are a fault.
    """
    command = f"loong-vla stats {where} --write"
    if missing := [name for name in _NEEDS[mode] if found is None or name not in found]:
        what = f"meta/stats.json has no {', '.join(missing)} of {feature}, which {mode} normalises by"
        return [Fault(where, what, f"run {command}")]
    if found is None or mode == "IDENTITY":
        return []
    entry = read_statistics(found)
    for name in _NEEDS[mode]:
        if entry[name].shape != (width,):
            what = f"{name} of {feature} has {entry[name].size} numbers in meta/stats.json, the feature {width}"
            return [Fault(where, what, f"run {command}")]
        if not np.isfinite(entry[name]).all():
            return [Fault(where, f"{name} of {feature} is not finite in meta/stats.json", f"run {command}")]
    still = np.flatnonzero(_span(entry, mode) == 0).tolist()
    if still and constant == "stop":
        what = f"{feature} never changes in {'dimension' if len(still) == 1 else 'dimensions'} {still}: zero range"
        return [Fault(where, what, "set data.constant_dimensions=centre to feed 0 there, or drop them")]
    return []


def _span(entry: Statistics, mode: str) -> NDArray[np.float64]:
    if mode == "MEAN_STD":
        return entry["std"]
    low, high = _NEEDS[mode]
    return entry[high] - entry[low]


def widened(entry: Statistics, mode: str) -> Statistics:
    """The same with room around numbers that never change, so that these are normalised to 0."""
    if mode == "IDENTITY":
        return entry
    still = _span(entry, mode) == 0
    if mode == "MEAN_STD":
        return entry | {"std": np.where(still, 1.0, entry["std"])}
    low, high = _NEEDS[mode]
    return entry | {
        low: np.where(still, entry[low] - 1, entry[low]),
        high: np.where(still, entry[high] + 1, entry[high]),
    }


@dataclass(frozen=True, eq=False)
class Normaliser:
    """`(x - offset) / scale` of one feature.

    Attributes:
        offset, scale: `[width]` float32.
        clips: whether what is normalised is kept within [-1, 1], and what is restored is taken from there.
    """

    offset: NDArray[np.float32]
    scale: NDArray[np.float32]
    clips: bool = False

    @staticmethod
    def of(entry: Statistics, mode: str, width: int, *, clips: bool = False) -> Normaliser:
        """By a feature's statistics: to mean 0 and deviation 1, or from a range (quantiles 1 % and 99 %) to [-1, 1]."""
        if mode == "IDENTITY":
            offset, scale = np.zeros(width), np.ones(width)
        elif mode == "MEAN_STD":
            offset, scale = entry["mean"], entry["std"] + EPS
        else:
            low, high = (entry[name] for name in _NEEDS[mode])
            offset, scale = (low + high) / 2, (high - low) / 2
        return Normaliser(offset.astype(np.float32), scale.astype(np.float32), clips)

    def normalise(self, values: NDArray) -> NDArray[np.float32]:
        """`[..., width]` as the policy sees it."""
        found = ((values - self.offset) / self.scale).astype(np.float32)
        return found.clip(-1.0, 1.0) if self.clips else found

    def restore(self, values: NDArray) -> NDArray[np.float32]:
        """The inverse of `normalise`."""
        values = values.clip(-1.0, 1.0) if self.clips else values
        return (values * self.scale + self.offset).astype(np.float32)
