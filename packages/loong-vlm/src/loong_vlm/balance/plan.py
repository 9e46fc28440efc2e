"""Who takes which samples of a global batch, so that every data rank has about the same to do.

The batch comes as packed sequences. Whole sequences are dealt out first, the costliest to the rank with the least so
far (LPT, R. L. Graham 1969). Then, while the heaviest rank is much heavier than another, the exchange between the two
that evens them out best is made: of two sequences, or of some samples of one for some of another, where sequences keep
to what they hold of tokens and patches (packed full, they take a long sample for several short ones). Costs are whole
numbers here: sums are exact, so every rank finds the same plan, on whatever processor.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loong_vlm.balance.cost import CostModel, Floats, imbalance

EVEN_ENOUGH = 0.02
"""Exchanges stop when the heaviest rank is within this share of the mean."""

_SEVERAL_WORTH = 0.04
"""Exchanges of several samples, which take longer to find, stop at this share."""

_EXCHANGES_A_RANK = 64
_WORTH = 0.02
"""Exchanges that even out less than this share of a gap are not made."""

_PAIRED, _TOGETHER = 16, 10
"""Of how many of a sequence's longest samples pairs are tried, and how many neighbours by length together."""

_FINENESS = float(1 << 32)
"""Of how many parts the costliest sample's cost is made."""

_Whole = NDArray[np.int64]


@dataclass(frozen=True)
class Item:
    """One sample of a global batch, as far as planning needs to know it.

    Attributes:
        places: tokens it takes of a sequence.
        patches: patches of its images.
        features: `[5]`, see `loong_vlm.balance.cost`.
    """

    places: int
    patches: int
    features: Floats


@dataclass(frozen=True)
class Room:
    """What one sequence holds at most.

    Attributes:
        places: tokens.
        patches: patches of images; None: any number.
    """

    places: int
    patches: int | None = None


@dataclass(frozen=True)
class Plan:
    """A global batch dealt out.

    Attributes:
        ranks: of each data rank its sequences, of each sequence its items' numbers; equally many sequences a rank,
            the costliest first, so that ranks work on sequences of like cost at the same time.
        before: the heaviest rank's cost over the mean, had the sequences been dealt out in order.
        after: the same by this plan.
    """

    ranks: list[list[list[int]]]
    before: float
    after: float


def in_order(sequences: Sequence[Sequence[int]], ranks: int, micro_batch_size: int) -> list[list[list[int]]]:
    """Sequences dealt out as a stream without balancing does: a microbatch to each rank in turn."""
    dealt: list[list[list[int]]] = [[] for _ in range(ranks)]
    for number, sequence in enumerate(sequences):
        dealt[number // micro_batch_size % ranks].append(list(sequence))
    return dealt


def make_plan(
    items: Sequence[Item],
    sequences: Sequence[Sequence[int]],
    ranks: int,
    room: Room,
    model: CostModel,
    micro_batch_size: int = 1,
    *,
    move_samples: bool = True,
) -> Plan:
    """Deal a global batch out to data ranks.

    Args:
        items: the batch's samples.
        sequences: of each packed sequence the numbers of its items; their count is a multiple of `ranks`.
        ranks: how many data ranks there are.
        room: what a sequence holds.
        model: what an item costs.
        micro_batch_size: sequences of a microbatch.
        move_samples: whether samples may change their sequence; else whole sequences only change their rank.
    """
    if len(sequences) % (ranks * micro_batch_size):
        raise ValueError(f"{len(sequences)} sequences do not go evenly to {ranks} ranks x {micro_batch_size}")
    costs = _whole_costs(items, model)
    ordered = in_order(sequences, ranks, micro_batch_size)
    before = imbalance(_loads(ordered, costs))
    if ranks == 1:
        return Plan(ordered, before, before)
    exchange = _Exchange(items, costs, _dealt_by_cost(sequences, costs, ranks), room, move_samples)
    exchange.run()
    planned = [sorted(own, key=lambda sequence: -int(costs[sequence].sum())) for own in exchange.ranks]
    after = imbalance(_loads(planned, costs))
    # Never worse than doing nothing.
    return Plan(planned, before, after) if after < before else Plan(ordered, before, before)


def _whole_costs(items: Sequence[Item], model: CostModel) -> _Whole:
    if not items:
        return np.zeros(0, np.int64)
    costs = model.cost(np.stack([item.features for item in items]))
    return np.rint(costs * (_FINENESS / max(float(costs.max()), np.finfo(np.float64).tiny))).astype(np.int64)


def _loads(ranks: Sequence[Sequence[Sequence[int]]], costs: _Whole) -> Floats:
    return np.array([sum(int(costs[list(sequence)].sum()) for sequence in own) for own in ranks], np.float64)


def _dealt_by_cost(sequences: Sequence[Sequence[int]], costs: _Whole, ranks: int) -> list[list[list[int]]]:
    """The costliest sequence first, each to the rank with the least so far that has a place left."""
    each = len(sequences) // ranks
    dealt: list[list[list[int]]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    weights = [int(costs[list(sequence)].sum()) for sequence in sequences]
    for number in sorted(range(len(sequences)), key=lambda number: (-weights[number], number)):
        rank = min((rank for rank in range(ranks) if len(dealt[rank]) < each), key=lambda rank: (loads[rank], rank))
        dealt[rank].append(list(sequences[number]))
        loads[rank] += weights[number]
    return dealt


@dataclass(frozen=True)
class _Group:
    """Samples of one sequence of a rank that may leave it together; none, if nothing does."""

    sequence: int
    items: tuple[int, ...]


@dataclass(frozen=True)
class _Move:
    """An exchange: the cost that goes to the lighter rank, and what leaves each; whole sequences change ranks."""

    shift: float
    heavy: _Group
    light: _Group
    whole: bool = False


class _Groups:
    """Groups of a rank, and what each would take along of cost, places and patches, and what its sequence has free."""

    def __init__(self, groups: list[_Group], sizes: list[NDArray[Any]], free: tuple[_Whole, _Whole]) -> None:
        self.groups = groups
        counts = np.array([len(group.items) for group in groups], np.int64)
        flat = np.array([item for group in groups for item in group.items], np.int64)
        running = [np.concatenate([np.zeros(1, np.int64), np.cumsum(values[flat])]) for values in sizes]
        stops = np.cumsum(counts)
        self.costs, self.places, self.patches = (sums[stops] - sums[stops - counts] for sums in running)
        at = np.array([group.sequence for group in groups], np.int64)
        self.free_places, self.free_patches = free[0][at], free[1][at]


class _Exchange:
    """Evens out ranks two at a time."""

    def __init__(
        self, items: Sequence[Item], costs: _Whole, ranks: list[list[list[int]]], room: Room, move_samples: bool
    ) -> None:
        self.ranks = ranks
        self._costs = costs
        self._places = np.array([item.places for item in items], np.int64)
        self._patches = np.array([item.patches for item in items], np.int64)
        self._room = room
        self._move_samples = move_samples

    def run(self) -> None:
        loads = _loads(self.ranks, self._costs)
        mean = float(loads.mean())
        for _ in range(_EXCHANGES_A_RANK * len(self.ranks)):
            heavy = int(loads.argmax())
            if loads[heavy] <= (1 + EVEN_ENOUGH) * mean:
                return
            lighter = [light for light in np.argsort(loads, kind="stable").tolist() if loads[light] < loads[heavy]]
            found = self._first(heavy, lighter, loads, several=False)
            if found is None and self._move_samples and loads[heavy] > (1 + _SEVERAL_WORTH) * mean:
                found = self._first(heavy, lighter, loads, several=True)
            if found is None:
                return
            light, move = found
            self._make(heavy, light, move)
            loads[heavy] -= move.shift
            loads[light] += move.shift

    def _first(self, heavy: int, lighter: list[int], loads: Floats, *, several: bool) -> tuple[int, _Move] | None:
        """The best exchange with the lightest rank with which there is one that helps."""
        for light in lighter:
            gap = float(loads[heavy] - loads[light])
            move = self._best(self.ranks[heavy], self.ranks[light], gap, several)
            if move is not None:
                return light, move
        return None

    def _best(self, ours: list[list[int]], theirs: list[list[int]], gap: float, several: bool) -> _Move | None:
        """The exchange whose shift of cost is nearest to half of the gap; None if none lessens it much."""
        best = None if several else self._best_whole(ours, theirs, gap)
        if not self._move_samples:
            return best
        mine, other = self._groups(ours, several), self._groups(theirs, several)
        shift = (mine.costs[:, None] - other.costs[None]).astype(np.float64)
        grown = mine.places[:, None] - other.places[None]
        grown_patches = mine.patches[:, None] - other.patches[None]
        allowed = _lessens(shift, gap)
        allowed &= (grown <= other.free_places[None]) & (-grown <= mine.free_places[:, None])
        allowed &= (grown_patches <= other.free_patches[None]) & (-grown_patches <= mine.free_patches[:, None])
        found = _nearest(shift, allowed, gap)
        if found is not None and (best is None or abs(found[2] - gap / 2) < abs(best.shift - gap / 2)):
            best = _Move(found[2], mine.groups[found[0]], other.groups[found[1]])
        return best

    def _best_whole(self, ours: list[list[int]], theirs: list[list[int]], gap: float) -> _Move | None:
        mine = np.array([self._costs[sequence].sum() for sequence in ours], np.float64)
        other = np.array([self._costs[sequence].sum() for sequence in theirs], np.float64)
        shift = mine[:, None] - other[None]
        found = _nearest(shift, _lessens(shift, gap), gap)
        if found is None:
            return None
        return _Move(found[2], _Group(found[0], ()), _Group(found[1], ()), whole=True)

    def _groups(self, sequences: list[list[int]], several: bool) -> _Groups:
        """What may leave each of a rank's sequences: nothing, one sample, and with `several` some samples together."""
        groups: list[_Group] = []
        for number, sequence in enumerate(sequences):
            groups.append(_Group(number, ()))
            groups.extend(_Group(number, (item,)) for item in sequence)
            if several:
                groups.extend(_Group(number, items) for items in self._together(sequence))
        places = np.array([self._room.places - self._places[sequence].sum() for sequence in sequences])
        most = np.iinfo(np.int64).max // 4 if self._room.patches is None else self._room.patches
        patches = np.array([most - self._patches[sequence].sum() for sequence in sequences])
        return _Groups(groups, [self._costs, self._places, self._patches], (places, patches))

    def _together(self, sequence: list[int]) -> Iterator[tuple[int, ...]]:
        """Pairs of the longest samples, and samples that follow each other by length."""
        by_length = sorted(sequence, key=lambda item: (-int(self._places[item]), item))
        yield from itertools.combinations(by_length[:_PAIRED], 2)
        for count in range(3, min(len(by_length), _TOGETHER) + 1):
            for first in range(len(by_length) - count + 1):
                yield tuple(by_length[first : first + count])

    def _make(self, heavy: int, light: int, move: _Move) -> None:
        ours, theirs = self.ranks[heavy], self.ranks[light]
        first, second = move.heavy.sequence, move.light.sequence
        if move.whole:
            ours[first], theirs[second] = theirs[second], ours[first]
            return
        leaving, coming = set(move.heavy.items), set(move.light.items)
        ours[first] = [item for item in ours[first] if item not in leaving] + list(move.light.items)
        theirs[second] = [item for item in theirs[second] if item not in coming] + list(move.heavy.items)


def _lessens(shift: Floats, gap: float) -> NDArray[np.bool_]:
    """Which shifts of cost lessen a gap by so much that it is worth an exchange."""
    return (shift > _WORTH * gap) & (shift < (1 - _WORTH) * gap)


def _nearest(shift: Floats, allowed: NDArray[np.bool_], gap: float) -> tuple[int, int, float] | None:
    """Row, column and value of the allowed shift nearest to half of the gap."""
    if not allowed.any():
        return None
    distance = np.where(allowed, np.abs(shift - gap / 2), np.inf)
    row, column = np.unravel_index(int(distance.argmin()), distance.shape)
    return int(row), int(column), float(shift[row, column])
