"""From the weights of a run's sources to the shares of their stores, fixed or changing with the steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loong_core.data.blend_schedule import BlendPoint, ScheduledBlend
from loong_core.errors import UserError


class Sized(Protocol):
    """A source of samples of which an epoch has a number."""

    per_epoch: int


@dataclass(frozen=True)
class WeightPoint:
    """The weights of a run's sources after one of its steps.

    Attributes:
        step: the step.
        weights: one number of 0 or more a source; only their ratios matter.
    """

    step: int
    weights: tuple[float, ...]


def blend_of(
    groups: Sequence[Sequence[Sized]],
    weights: Sequence[float] | None,
    schedule: Sequence[WeightPoint] = (),
    *,
    global_batch_size: int,
) -> list[float] | ScheduledBlend:
    """What a `Stream` over the stores of all groups, one after the other, takes as its shares.

    Args:
        groups: the stores of each source; they divide their source's weight by their sizes.
        weights: of the sources; None: each the share of its size.
        schedule: weights that change, in straight lines from point to point; before the first point from `weights`.
        global_batch_size: samples of a step.

    Raises:
        UserError: points out of order, or whose weights do not fit the sources.
    """
    sizes = [sum(store.per_epoch for store in group) for group in groups]
    first = list(weights) if weights is not None else [float(size) for size in sizes]

    def shares(given: Sequence[float]) -> list[float]:
        return [
            weight * store.per_epoch / size
            for weight, size, group in zip(given, sizes, groups, strict=True)
            for store in group
        ]

    if not schedule:
        return shares(first)
    points = list(schedule)
    if points[0].step > 0:
        points.insert(0, WeightPoint(0, tuple(first)))
    if any(len(point.weights) != len(groups) for point in points):
        raise UserError(f"data.blend_schedule: every point needs {len(groups)} weights, one a source")
    try:
        return ScheduledBlend(
            [BlendPoint(each.step * global_batch_size, tuple(shares(each.weights))) for each in points]
        )
    except ValueError as error:
        raise UserError(f"data.blend_schedule: {error}") from error
