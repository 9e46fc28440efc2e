"""Who takes which samples of a global batch, so that every data rank has about the same to do.

The batch comes as packed sequences. Whole sequences are dealt out first, the costliest to the rank with the least so
far (LPT, R. L. Graham 1969). Then, while the heaviest rank is much heavier than another, the exchange between the two
that evens them out best is made: two sequences, two samples, or one sample given away, where sequences keep to what
they hold of tokens and patches. Costs are whole numbers here: sums are exact, so every rank finds the same plan, on
whatever processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loong_vlm.balance.cost import CostModel, Floats, imbalance

EVEN_ENOUGH = 0.01
"""Exchanges stop when the heaviest rank is within this share of the mean."""

_EXCHANGES_A_RANK = 64
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
class _Move:
    """An exchange: what leaves the heavier rank's sequence, and what comes for it from the lighter's; -1: nothing."""

    shift: float
    heavy_sequence: int
    light_sequence: int
    heavy_item: int = -1
    light_item: int = -1
    whole: bool = False


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
            for light in np.argsort(loads, kind="stable").tolist():
                gap = float(loads[heavy] - loads[light])
                move = self._best(heavy, light, gap) if gap > 1e-9 * mean else None
                if move is not None:
                    self._make(heavy, light, move)
                    loads[heavy] -= move.shift
                    loads[light] += move.shift
                    break
            else:
                return

    def _best(self, heavy: int, light: int, gap: float) -> _Move | None:
        """The exchange whose shift of cost is nearest to half of the gap; None if none lessens it."""
        ours, theirs = self.ranks[heavy], self.ranks[light]
        best = self._best_whole(ours, theirs, gap)
        if not self._move_samples:
            return best
        ours_flat, ours_at, ours_free = self._flat(ours)
        theirs_flat, theirs_at, theirs_free = self._flat(theirs)
        # What comes for a sample may be nothing, in any of the other rank's sequences.
        theirs_flat = np.concatenate([theirs_flat, np.full(len(theirs), -1)])
        theirs_at = np.concatenate([theirs_at, np.arange(len(theirs))])
        shift = self._of(self._costs, ours_flat)[:, None] - self._of(self._costs, theirs_flat)[None]
        allowed = (shift > 1e-6 * gap) & (shift < (1 - 1e-6) * gap)
        for sizes, kind in ((self._places, 0), (self._patches, 1)):
            grown = self._of(sizes, ours_flat)[:, None] - self._of(sizes, theirs_flat)[None]
            allowed &= grown <= theirs_free[kind][theirs_at][None]
            allowed &= -grown <= ours_free[kind][ours_at][:, None]
        if allowed.any():
            distance = np.where(allowed, np.abs(shift - gap / 2), np.inf)
            row, column = np.unravel_index(int(distance.argmin()), distance.shape)
            found = float(shift[row, column])
            if best is None or abs(found - gap / 2) < abs(best.shift - gap / 2):
                heavy_item, light_item = int(ours_flat[row]), int(theirs_flat[column])
                best = _Move(found, int(ours_at[row]), int(theirs_at[column]), heavy_item, light_item)
        return best

    def _best_whole(self, ours: list[list[int]], theirs: list[list[int]], gap: float) -> _Move | None:
        mine = np.array([self._costs[sequence].sum() for sequence in ours])
        other = np.array([self._costs[sequence].sum() for sequence in theirs])
        shift = mine[:, None] - other[None]
        allowed = (shift > 1e-6 * gap) & (shift < (1 - 1e-6) * gap)
        if not allowed.any():
            return None
        distance = np.where(allowed, np.abs(shift - gap / 2), np.inf)
        row, column = np.unravel_index(int(distance.argmin()), distance.shape)
        return _Move(float(shift[row, column]), int(row), int(column), whole=True)

    def _flat(self, sequences: list[list[int]]) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """Items of a rank's sequences, the sequence each is in, and what each sequence has free of places, patches."""
        flat = np.array([item for sequence in sequences for item in sequence], np.int64)
        at = np.repeat(np.arange(len(sequences)), [len(sequence) for sequence in sequences])
        places = np.array([self._room.places - self._places[sequence].sum() for sequence in sequences])
        most = np.iinfo(np.int64).max // 2 if self._room.patches is None else self._room.patches
        patches = np.array([most - self._patches[sequence].sum() for sequence in sequences])
        return flat, at, (places, patches)

    @staticmethod
    def _of(values: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Values of items, 0 for the item -1."""
        return np.where(items >= 0, values[items], 0)

    def _make(self, heavy: int, light: int, move: _Move) -> None:
        ours, theirs = self.ranks[heavy], self.ranks[light]
        if move.whole:
            first, second = move.heavy_sequence, move.light_sequence
            ours[first], theirs[second] = theirs[second], ours[first]
            return
        ours[move.heavy_sequence].remove(move.heavy_item)
        theirs[move.light_sequence].append(move.heavy_item)
        if move.light_item >= 0:
            theirs[move.light_sequence].remove(move.light_item)
            ours[move.heavy_sequence].append(move.light_item)
