"""Who takes which samples of a global batch, so that every data rank has about the same to do.

The batch comes as packed sequences. Whole sequences are dealt out first, the costliest to the rank with the least so
far (LPT, R. L. Graham 1969). Then, while the heaviest rank is much heavier than another, the exchange between the two
that evens them out best is made: of two sequences, or of one sample for another or for nothing, where sequences keep to
what they hold of tokens and patches; or two sequences, packed full, share their samples anew (`repartition`). Costs are
whole numbers here: sums are exact, so every rank finds the same plan, on whatever processor.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loong_vlm.balance.cost import CostModel, Floats, imbalance
from loong_vlm.balance.repartition import Whole, divide_anew

EVEN_ENOUGH = 0.02
"""Exchanges stop when the heaviest rank is within this share of the mean."""

_ANEW = 0.04
"""Sequences are divided anew, which takes longer to find, until the heaviest rank is within this share."""

_PAIRS = 16
"""Of how many pairs of sequences of two ranks ways to divide them anew are looked for."""

_EXCHANGES_A_RANK = 64
_WORTH = 0.02
"""Exchanges that even out less than this share of a gap are not made."""

_FINENESS = float(1 << 32)
"""Of how many parts the costliest sample's cost is made."""


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


def _whole_costs(items: Sequence[Item], model: CostModel) -> Whole:
    if not items:
        return np.zeros(0, np.int64)
    costs = model.cost(np.stack([item.features for item in items]))
    return np.rint(costs * (_FINENESS / max(float(costs.max()), np.finfo(np.float64).tiny))).astype(np.int64)


def _loads(ranks: Sequence[Sequence[Sequence[int]]], costs: Whole) -> Floats:
    return np.array([sum(int(costs[list(sequence)].sum()) for sequence in own) for own in ranks], np.float64)


def _dealt_by_cost(sequences: Sequence[Sequence[int]], costs: Whole, ranks: int) -> list[list[list[int]]]:
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
class _Move:
    """An exchange of a heavier rank with a lighter one.

    Attributes:
        shift: the cost that goes to the lighter rank.
        heavy, light: the sequences that change, by their number in each rank.
        ours, theirs: what they hold afterwards.
    """

    shift: float
    heavy: int
    light: int
    ours: list[int]
    theirs: list[int]


class _Leaving:
    """What may leave each sequence of a rank: nothing (item -1), or one sample; and what its sequence has free."""

    def __init__(self, sequences: list[list[int]], sizes: tuple[Whole, Whole, Whole], room: tuple[int, int]) -> None:
        self.sequence = np.array([number for number, own in enumerate(sequences) for _ in range(len(own) + 1)])
        self.item = np.array([item for own in sequences for item in (-1, *own)])
        self.costs, self.places, self.patches = (values[self.item] for values in sizes)
        self.free_places, self.free_patches = (
            most - np.array([values[own].sum() for own in sequences])[self.sequence]
            for most, values in zip(room, sizes[1:], strict=True)
        )


class _Exchange:
    """Evens out ranks two at a time."""

    def __init__(
        self, items: Sequence[Item], costs: Whole, ranks: list[list[list[int]]], room: Room, move_samples: bool
    ) -> None:
        self.ranks = ranks
        # A further sample, item -1, is nothing.
        places, patches = (
            np.array([getattr(item, name) for item in items] + [0], np.int64) for name in ("places", "patches")
        )
        self._sizes = np.append(costs, 0), places, patches
        self._room = room.places, np.iinfo(np.int64).max // 4 if room.patches is None else room.patches
        self._move_samples = move_samples

    def run(self) -> None:
        loads = _loads(self.ranks, self._sizes[0])
        mean = float(loads.mean())
        for _ in range(_EXCHANGES_A_RANK * len(self.ranks)):
            if loads.max() <= (1 + EVEN_ENOUGH) * mean:
                return
            # Where the heaviest rank finds no exchange, the next ones may: what they hold then serves the heaviest.
            heaviest_first = np.argsort(-loads, kind="stable").tolist()
            tried = ((heavy, self._found(heavy, loads, mean)) for heavy in heaviest_first)
            made = next(((heavy, *found) for heavy, found in tried if found is not None), None)
            if made is None:
                return
            heavy, light, move = made
            self.ranks[heavy][move.heavy], self.ranks[light][move.light] = move.ours, move.theirs
            loads[heavy] -= move.shift
            loads[light] += move.shift

    def _found(self, heavy: int, loads: Floats, mean: float) -> tuple[int, _Move] | None:
        """An exchange of a rank with a lighter one, and which."""
        lighter = [light for light in np.argsort(loads, kind="stable").tolist() if loads[light] < loads[heavy]]
        found = self._first(heavy, lighter, loads, self._best)
        if found is None and self._move_samples and loads.max() > (1 + _ANEW) * mean:
            found = self._first(heavy, lighter, loads, self._best_anew)
        return found

    def _first(
        self,
        heavy: int,
        lighter: list[int],
        loads: Floats,
        best: Callable[[list[list[int]], list[list[int]], float], _Move | None],
    ) -> tuple[int, _Move] | None:
        """The best exchange with the lightest rank with which there is one that helps."""
        for light in lighter:
            move = best(self.ranks[heavy], self.ranks[light], float(loads[heavy] - loads[light]))
            if move is not None:
                return light, move
        return None

    def _best(self, ours: list[list[int]], theirs: list[list[int]], gap: float) -> _Move | None:
        """Of whole sequences or single samples, the shift of cost nearest to half of the gap; None if none helps."""
        best = self._best_whole(ours, theirs, gap)
        if not self._move_samples:
            return best
        mine, other = (_Leaving(sequences, self._sizes, self._room) for sequences in (ours, theirs))
        shift = (mine.costs[:, None] - other.costs[None]).astype(np.float64)
        grown = mine.places[:, None] - other.places[None]
        grown_patches = mine.patches[:, None] - other.patches[None]
        allowed = _lessens(shift, gap)
        allowed &= (grown <= other.free_places[None]) & (-grown <= mine.free_places[:, None])
        allowed &= (grown_patches <= other.free_patches[None]) & (-grown_patches <= mine.free_patches[:, None])
        found = _nearest(shift, allowed, gap)
        if found is None or (best is not None and abs(found[2] - gap / 2) >= abs(best.shift - gap / 2)):
            return best
        row, column, moved = found
        heavy, light = int(mine.sequence[row]), int(other.sequence[column])
        leaving, coming = int(mine.item[row]), int(other.item[column])
        return _Move(
            moved,
            heavy,
            light,
            [item for item in [*ours[heavy], coming] if item not in (leaving, -1)],
            [item for item in [*theirs[light], leaving] if item not in (coming, -1)],
        )

    def _best_whole(self, ours: list[list[int]], theirs: list[list[int]], gap: float) -> _Move | None:
        mine, other = (self._costs_of(sequences) for sequences in (ours, theirs))
        shift = mine[:, None] - other[None]
        found = _nearest(shift, _lessens(shift, gap), gap)
        if found is None:
            return None
        heavy, light, moved = found
        return _Move(moved, heavy, light, theirs[light], ours[heavy])

    def _best_anew(self, ours: list[list[int]], theirs: list[list[int]], gap: float) -> _Move | None:
        """Of pairs of sequences that share their samples anew, our costliest with their cheapest first, the best."""
        mine, other = (self._costs_of(sequences) for sequences in (ours, theirs))
        best = None
        pairs = itertools.product(np.argsort(-mine, kind="stable").tolist(), np.argsort(other, kind="stable").tolist())
        for heavy, light in itertools.islice(pairs, _PAIRS):
            found = divide_anew(ours[heavy], theirs[light], self._sizes, self._room, float(mine[heavy]) - gap / 2)
            if found is None:
                continue
            shift = float(mine[heavy]) - found.cost
            if not _lessens(np.array(shift), gap) or (best and abs(best.shift - gap / 2) <= abs(shift - gap / 2)):
                continue
            best = _Move(shift, heavy, light, list(found.first), list(found.second))
        return best

    def _costs_of(self, sequences: list[list[int]]) -> Floats:
        return np.array([self._sizes[0][own].sum() for own in sequences], np.float64)


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
