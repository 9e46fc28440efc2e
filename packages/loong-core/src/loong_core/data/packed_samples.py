"""Samples of unlike lengths, packed: what conversations and other whole samples are trained from.

A store's ids carry a mark each, whether the token is trained on (`loong_core.data.marks`). All samples are laid out
once, in an order that the seed decides, window after window by best fit; an epoch gives the resulting sequences in an
order of its own.
The interface is that of `Sequences`, so a `Stream` reads both, blended or alone, and resumes both exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loong_core.data.batch import IGNORED_LABEL
from loong_core.data.held_out import HeldOutRows
from loong_core.data.marks import unmark
from loong_core.data.packing import LongSamples, PackingCount, pack_window, places
from loong_core.data.sequences import Sample
from loong_core.data.shuffle import permutation
from loong_core.data.token_store import Ids, TokenStore
from loong_core.errors import UserError

WINDOW = 8192
"""Samples that packing looks ahead."""

Stretch = tuple[int, int, int]
"""A sample of a store, and the first and last of its places that are packed, as `range` counts."""


def lay_out(parts: Sequence[Ids], *, multiple: int = 1, fill: int | None = None) -> Sample:
    """Stretches of samples end to end as one sequence.

    Args:
        parts: marked ids; of `n` of them, `n - 1` are inputs.
        multiple: each part's places are filled up to a multiple of this.
        fill: places of the sequence, the free ones filled up; None: as many as the parts need.
    """
    tokens, labels, lengths = [], [], []
    for part in parts:
        ids, trained = unmark(part)
        places = -(-(len(ids) - 1) // multiple) * multiple
        own_tokens, own_labels = np.zeros(places, np.int64), np.full(places, IGNORED_LABEL, np.int64)
        own_tokens[: len(ids) - 1] = ids[:-1]
        own_labels[: len(ids) - 1] = np.where(trained[1:], ids[1:], IGNORED_LABEL)
        tokens.append(own_tokens)
        labels.append(own_labels)
        lengths.append(places)
    free = 0 if fill is None else fill - sum(lengths)
    if free:
        # Sequences of one length keep every microbatch's shape; what fills them is a sequence without labels.
        tokens.append(np.zeros(free, np.int64))
        labels.append(np.full(free, IGNORED_LABEL, np.int64))
        lengths.append(free)
    return Sample(np.concatenate(tokens), np.concatenate(labels), lengths)


class PackedSamples:
    """The sequences of one store of marked samples, epoch after epoch.

    A sample of `n` tokens takes `n - 1` places: each but its last token is an input, the token after it the label.

    Args:
        store: the samples, marked.
        sequence_length: places of a sequence.
        long_samples: what becomes of samples that need more places.
        packing: whether samples share sequences; without, each has one of its own, as long as it is.
        multiple: each sample's places are filled up to a multiple of this (context parallelism cuts samples evenly).
        seed: decides the orders, with `source`.
        source: number of this store in its blend.
        window: samples that packing looks ahead.

    Raises:
        UserError: nothing is left to train on, or a sample is too long and `long_samples` is `stop`.
    """

    attend_across_documents = False
    second_capacity: int | None = None
    """What a sequence holds at most of a second budget (`second_size`), None where there is none."""

    def __init__(
        self,
        store: TokenStore,
        sequence_length: int,
        *,
        long_samples: LongSamples = "truncate",
        packing: bool = True,
        multiple: int = 1,
        seed: int = 0,
        source: int = 0,
        window: int = WINDOW,
    ) -> None:
        if sequence_length % multiple:
            raise UserError(
                f"data.sequence_length {sequence_length} is no multiple of {multiple}, by which the layout divides it"
            )
        self.store = store
        self.sequence_length = sequence_length
        self.packing = packing
        self.multiple = multiple
        self.count = PackingCount()
        self._seed, self._source = seed, source
        self.policy: LongSamples = long_samples
        self._pieces, self._bounds = self._plan(window)
        self.per_epoch = len(self._bounds) - 1
        if self.per_epoch == 0:
            raise UserError(
                f"{store.name}: none of its {len(store):,} samples has a trained token within data.sequence_length "
                f"{sequence_length}; raise it, or set data.long_samples to split"
            )
        self._epoch = -1
        self._order: NDArray[np.int64] = np.zeros(0, np.int64)

    @property
    def key(self) -> tuple[Any, ...]:
        """What, beside the store and the sequence length, decides the samples."""
        return self._seed, self._source, self.policy, self.packing, self.multiple

    def sample(self, draw: int) -> Sample:
        """The `draw`-th sequence since the beginning of epoch 0."""
        return self.sequence(self.number(draw))

    def number(self, draw: int) -> int:
        """Which sequence the `draw`-th since the beginning of epoch 0 is."""
        epoch, position = divmod(draw, self.per_epoch)
        if epoch != self._epoch:
            self._order = permutation(self.per_epoch, self._seed, self._source, epoch, 1)
            self._epoch = epoch
        return int(self._order[position])

    def stretches(self, number: int) -> list[Stretch]:
        """What sequence `number` of `per_epoch` is made of."""
        pieces = self._pieces[self._bounds[number] : self._bounds[number + 1]].tolist()
        return [(index, start, stop) for index, start, stop in pieces]

    def sequence(self, number: int) -> Sample:
        """Sequence `number` of `per_epoch`, in the order in which they were packed."""
        return self.lay_out(self.stretches(number))

    def lay_out(self, stretches: Sequence[Stretch]) -> Sample:
        """These stretches end to end as one sequence."""
        fill = self.sequence_length if self.packing else None
        return lay_out([self.marked(stretch) for stretch in stretches], multiple=self.multiple, fill=fill)

    def marked(self, stretch: Stretch) -> Ids:
        """The marked ids of a stretch: those of its places, and the one after the last, which is a label only."""
        index, start, stop = stretch
        return self.store.document(index)[start : stop + 1]

    def places(self, stretch: Stretch) -> int:
        """Places that a stretch takes of a sequence."""
        return self._padded(stretch[2] - stretch[1])

    def second_size(self, stretch: Stretch) -> int:
        """What a stretch takes of the second budget."""
        return 0

    def _padded(self, length: int) -> int:
        return -(-length // self.multiple) * self.multiple

    def _plan(self, window: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each sequence's tokens are: pieces `[pieces, 3]` of sample, start, stop, and each sequence's bounds."""
        order = permutation(len(self.store), self._seed, self._source, 0)
        size = None if self.second_capacity is None else self.second_size
        waiting: list[Stretch] = []
        pieces: list[NDArray[np.int64]] = []
        sizes: list[int] = []
        for first in range(0, len(order), window):
            fresh = self._stretches(order[first : first + window])
            if self.packing:
                last = first + window >= len(order)
                given, waiting = pack_window(
                    waiting,
                    fresh,
                    self.places,
                    self.sequence_length,
                    last=last,
                    size=size,
                    second_capacity=self.second_capacity or 0,
                )
            else:
                given = [[stretch] for stretch in fresh]
            if given:
                pieces.append(np.array([stretch for sequence in given for stretch in sequence], np.int64))
                sizes.extend(len(sequence) for sequence in given)
            for sequence in given:
                held = [stop - start for _, start, stop in sequence]
                self.count.add(held, self.sequence_length if self.packing else sum(map(self._padded, held)))
        bounds = np.zeros(len(sizes) + 1, np.int64)
        np.cumsum(sizes, out=bounds[1:])
        return np.concatenate(pieces) if pieces else np.zeros((0, 3), np.int64), bounds

    def _stretches(self, samples: NDArray[np.int64]) -> list[Stretch]:
        """The stretches of these samples that are packed; long ones are cut as asked for and counted."""
        found: list[Stretch] = []
        lengths = (self.store.lengths[samples] - 1).tolist()
        for index, length in zip(samples.tolist(), lengths, strict=True):
            if self.fits((index, 0, length)):
                if length > 0:
                    found.append((index, 0, length))
                continue
            found.extend((index, start, stop) for start, stop in self._cut(index, length))
        return found

    def fits(self, stretch: Stretch) -> bool:
        """Whether a sequence holds the whole stretch."""
        within = self.second_capacity is None or self.second_size(stretch) <= self.second_capacity
        return stretch[2] - stretch[1] <= self.sequence_length and within

    def excess(self, index: int, length: int) -> str:
        """By what a sample does not fit, and what to do about it."""
        return (
            f"{self.store.name}: sample {index} has {length + 1:,} tokens, data.sequence_length is "
            f"{self.sequence_length:,}; raise it, or set data.long_samples to truncate, split or drop"
        )

    def cuts(self, index: int, length: int) -> list[tuple[int, int]]:
        """Where a sample of `length` places that does not fit is cut."""
        return places(length, self.sequence_length, self.policy)

    def _cut(self, index: int, length: int) -> list[tuple[int, int]]:
        if self.policy == "stop":
            raise UserError(self.excess(index, length))
        _, trained = unmark(self.store.document(index))
        cut = self.cuts(index, length)
        kept = [(start, stop) for start, stop in cut if trained[start + 1 : stop + 1].any()]
        self.count.lost_tokens += length - sum(stop - start for start, stop in kept)
        if not kept:
            self.count.dropped += 1
        elif self.policy == "truncate":
            self.count.truncated += 1
        else:
            self.count.split += 1
        return kept


class HeldOutSamples(HeldOutRows):
    """Held-out samples as a fixed list of sequences.

    Args:
        stores: marked samples.
        sequence_length: places of a sequence; longer samples are split, so that every trained token counts.
        multiple: each sample's places are filled up to a multiple of this.

    Raises:
        UserError: nothing is left to judge by.
    """

    def __init__(self, stores: Sequence[TokenStore], sequence_length: int, *, multiple: int = 1) -> None:
        self.stores = list(stores)
        self.sequence_length = sequence_length
        parts = [
            PackedSamples(store, sequence_length, long_samples="split", multiple=multiple, source=number)
            for number, store in enumerate(self.stores)
        ]
        self._rows = [(part, number) for part in parts for number in range(part.per_epoch)]
        self.predicted_tokens = sum(
            int((self.row(number).labels != IGNORED_LABEL).sum()) for number in range(len(self))
        )

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._rows)

    def row(self, index: int) -> Sample:
        """One sequence."""
        part, number = self._rows[index]
        return part.sequence(number)
