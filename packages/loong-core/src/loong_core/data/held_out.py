"""Held-out text as a fixed list of rows: what validation and `eval` compute their loss on.

With documents kept apart, each document is cut into disjoint windows of at most `sequence_length` inputs, and each
window is a sequence of its own. Every token but the first of its document is predicted exactly once, from at most
`sequence_length` tokens of its own document. The loss therefore does not depend on how windows share rows, on batch
sizes or on the number of ranks, and anyone can compute it with any model: for each document, for each start
`0, S, 2S, ...`, predict tokens `start + 1` to `start + S` from tokens `start` to `start + S - 1`.
With `attend_across_documents` the documents are laid end to end first and the windows cut through that line.
With a `stride` below `sequence_length` windows overlap: each begins `stride` tokens after the one before, and only what
that one did not predict is predicted, from at least `sequence_length - stride` tokens before it.
"""

from __future__ import annotations

import hashlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.data.packing import best_fit
from loong_core.data.sequences import Sample, pack
from loong_core.data.token_store import TokenStore
from loong_core.errors import UserError


@dataclass(frozen=True)
class _Window:
    """Inputs `start` to `start + inputs` of a document; the first `context` of them predict nothing."""

    document: int
    start: int
    inputs: int
    context: int


def _windows(document: int, inputs: int, sequence_length: int, stride: int) -> Iterator[_Window]:
    """The windows over a document's `inputs` (all tokens but its last)."""
    start = predicted = 0
    while predicted < inputs:
        end = min(start + sequence_length, inputs)
        yield _Window(document, start, end - start, predicted - start)
        start, predicted = start + stride, end


class HeldOutRows(ABC):
    """A fixed list of rows, dealt out to data ranks.

    Attributes:
        stores: what the rows are made of.
        sequence_length: tokens of a row.
        predicted_tokens: how many tokens of all rows have a label.
    """

    stores: list[TokenStore]
    sequence_length: int
    predicted_tokens: int

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def row(self, index: int) -> Sample:
        """One row as tokens, labels and lengths."""

    @property
    def digest(self) -> str:
        """Identity of the content."""
        return hashlib.sha256("".join(store.digest for store in self.stores).encode()).hexdigest()

    def microbatches(
        self, *, micro_batch_size: int, data_rank: int = 0, data_size: int = 1, rows: int | None = None
    ) -> list[PackedBatch]:
        """One data rank's share, in a fixed order and the same number of microbatches on every rank.

        Args:
            micro_batch_size: rows of a microbatch.
            data_rank: which share.
            data_size: into how many shares the rows are dealt.
            rows: use only so many, evenly spaced over all; None: all. Where the rows do not come out even, rows
                without labels fill up.
        """
        return list(self._share(micro_batch_size, data_rank, data_size, rows))

    def _share(self, micro_batch_size: int, data_rank: int, data_size: int, rows: int | None) -> Iterator[PackedBatch]:
        chosen = list(range(len(self)))
        if rows is not None and rows < len(self):
            chosen = [index * len(self) // rows for index in range(rows)]
        stride = micro_batch_size * data_size
        empty = Sample(
            np.zeros(self.sequence_length, np.int64),
            np.full(self.sequence_length, IGNORED_LABEL, np.int64),
            [self.sequence_length],
        )
        for first in range(data_rank * micro_batch_size, -(-len(chosen) // stride) * stride, stride):
            own = [self.row(index) for index in chosen[first : first + micro_batch_size]]
            yield self.collate(own + [empty] * (micro_batch_size - len(own)))

    def collate(self, rows: list[Sample]) -> PackedBatch:
        """Rows as a microbatch."""
        return pack(rows)

    def steps(
        self,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        data_rank: int = 0,
        data_size: int = 1,
        steps: int | None = None,
    ) -> Iterator[list[PackedBatch]]:
        """`microbatches` in lists of at most a global batch each; with `steps`, rows for so many global batches."""
        rows = None if steps is None else steps * global_batch_size
        share = self._share(micro_batch_size, data_rank, data_size, rows)
        for step in itertools.batched(share, max(global_batch_size // (micro_batch_size * data_size), 1)):
            yield list(step)


class JoinedHeldOut(HeldOutRows):
    """The rows of several lists, one list after the other; all have one `sequence_length`."""

    def __init__(self, parts: Sequence[HeldOutRows]) -> None:
        self.parts = list(parts)
        self.stores = [store for part in parts for store in part.stores]
        self.sequence_length = parts[0].sequence_length
        self.predicted_tokens = sum(part.predicted_tokens for part in parts)

    def __len__(self) -> int:
        """Number of rows."""
        return sum(map(len, self.parts))

    def row(self, index: int) -> Sample:
        """One row."""
        for part in self.parts:
            if index < len(part):
                return part.row(index)
            index -= len(part)
        raise IndexError(f"there are {len(self)} rows")


class HeldOut(HeldOutRows):
    """Documents as rows of exactly `sequence_length` tokens; what windows leave free is filled up and has no labels.

    Args:
        stores: the documents.
        sequence_length: tokens of a row.
        attend_across_documents: see the module.
        stride: see the module; None: `sequence_length`, disjoint windows.

    Raises:
        UserError: no token can be predicted: there is no document of two tokens.
    """

    def __init__(
        self,
        stores: Sequence[TokenStore],
        sequence_length: int,
        *,
        attend_across_documents: bool = False,
        stride: int | None = None,
    ) -> None:
        self.stores = list(stores)
        self.sequence_length = sequence_length
        self.attend_across_documents = attend_across_documents
        self._windows: list[_Window] = []
        self._documents = [(store, index) for store in self.stores for index in range(len(store))]
        if attend_across_documents:
            everything = [store.document(index) for store, index in self._documents]
            self._line = np.concatenate(everything) if everything else np.zeros(0, np.int64)
            lengths = [len(self._line)]
        else:
            lengths = [int(store.lengths[index]) for store, index in self._documents]
        for document, length in enumerate(lengths):
            self._windows += _windows(document, length - 1, sequence_length, stride or sequence_length)
        if not self._windows:
            names = ", ".join(store.name for store in self.stores) or "no source"
            raise UserError(f"held-out data ({names}) has no document of two tokens; give it some text")
        self._rows = best_fit([window.inputs for window in self._windows], sequence_length)
        self.predicted_tokens = sum(window.inputs - window.context for window in self._windows)

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._rows)

    def row(self, index: int) -> Sample:
        """One row as tokens, labels and lengths."""
        tokens = np.zeros(self.sequence_length, np.int64)
        labels = np.full(self.sequence_length, IGNORED_LABEL, np.int64)
        lengths, used = [], 0
        for window in (self._windows[number] for number in self._rows[index]):
            if self.attend_across_documents:
                document = self._line
            else:
                store, place = self._documents[window.document]
                document = store.document(place)
            ids = document[window.start : window.start + window.inputs + 1]
            tokens[used : used + window.inputs] = ids[:-1]
            labels[used + window.context : used + window.inputs] = ids[1 + window.context :]
            lengths.append(window.inputs)
            used += window.inputs
        if used < self.sequence_length:
            if self.attend_across_documents:
                lengths = [self.sequence_length]
            else:
                lengths.append(self.sequence_length - used)
        return Sample(tokens, labels, lengths)
