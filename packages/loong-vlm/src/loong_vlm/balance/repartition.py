"""Two packed sequences divided anew: of all ways to share their samples that keep to what each holds, the evenest.

Sequences that are packed full have no room for a longer sample in the place of a shorter one: what can change sides is
some samples for others that take just as many places. All sums of halves of the samples are listed, and met in the
middle (E. Horowitz and S. Sahni 1974): of `2^24` ways to divide 24 samples those that fit are found by `2^12` searches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FREE = 24
"""Samples of two sequences that may change sides, at most; others stay."""

_WAYS = 1 << 18
"""Ways that are compared, at most; with more, fewer samples are free."""

Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Division:
    """How two sequences share their samples.

    Attributes:
        first: samples of the first.
        second: of the second.
        cost: of the first.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    cost: int


def divide_anew(
    first: list[int],
    second: list[int],
    sizes: tuple[Whole, Whole, Whole],
    room: tuple[int, int],
    wanted: float,
) -> Division | None:
    """The division in which the first sequence's cost is nearest to `wanted`.

    Args:
        first: samples of one sequence.
        second: of the other.
        sizes: every sample's cost, places and patches, whole numbers.
        room: places and patches that a sequence holds.
        wanted: cost of the first sequence.

    Returns:
        None where no way is nearer than the present one. The same numbers give the same division everywhere.
    """
    free = FREE
    while free >= 2:
        division, ways = _divide(first, second, sizes, room, wanted, free)
        if ways <= _WAYS:
            return division
        free -= 4
    return None


def _divide(
    first: list[int],
    second: list[int],
    sizes: tuple[Whole, Whole, Whole],
    room: tuple[int, int],
    wanted: float,
    free: int,
) -> tuple[Division | None, int]:
    """The best division with so many samples free, and how many ways there are; nothing is compared beyond `_WAYS`."""
    places = sizes[1]
    mine, other = _spread(first, places, free // 2), _spread(second, places, free - free // 2)
    moving = sorted([*mine, *other], key=lambda item: (-int(places[item]), item))
    halves = moving[::2], moving[1::2]
    kept = [item for item in first if item not in mine]
    staying = [item for item in second if item not in other]
    sums = [[_subset_sums(size[half]) for size in sizes] for half in halves]  # of each half: costs, places, patches
    base = [int(size[kept].sum()) for size in sizes]
    total = [int(size[[*first, *second]].sum()) for size in sizes]

    order = np.argsort(sums[1][1], kind="stable")
    ordered = sums[1][1][order]
    taken = base[1] + sums[0][1]
    low = np.searchsorted(ordered, total[1] - room[0] - taken, side="left")
    high = np.searchsorted(ordered, room[0] - taken, side="right")
    counts = np.maximum(high - low, 0)
    ways = int(counts.sum())
    if ways == 0 or ways > _WAYS:
        return None, ways
    left = np.repeat(np.arange(len(counts)), counts)
    right = order[np.arange(ways) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)]
    patches = base[2] + sums[0][2][left] + sums[1][2][right]
    costs = base[0] + sums[0][0][left] + sums[1][0][right]
    distance = np.where((patches <= room[1]) & (total[2] - patches <= room[1]), np.abs(costs - wanted), np.inf)
    best = int(distance.argmin())
    if distance[best] >= abs(int(sizes[0][first].sum()) - wanted):
        return None, ways
    chosen = {*_members(halves[0], int(left[best])), *_members(halves[1], int(right[best]))}
    return Division(
        (*kept, *(item for item in moving if item in chosen)),
        (*staying, *(item for item in moving if item not in chosen)),
        int(costs[best]),
    ), ways


def _spread(sequence: list[int], places: Whole, count: int) -> set[int]:
    """So many samples of a sequence: the longest, and others of all lengths."""
    by_length = sorted(sequence, key=lambda item: (-int(places[item]), item))
    long = min(count // 2, len(by_length))
    rest, few = by_length[long:], count - long
    if len(rest) > few:
        rest = [rest[number * len(rest) // few] for number in range(few)]
    return {*by_length[:long], *rest}


def _subset_sums(values: Whole) -> Whole:
    """`[2^n]`: the sum of the values whose bits are set in an index."""
    sums = np.zeros(1, np.int64)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums


def _members(half: list[int], index: int) -> list[int]:
    return [item for number, item in enumerate(half) if index >> number & 1]
