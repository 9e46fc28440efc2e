"""From documents to samples of equal length.

An epoch lays all documents of a store end to end in an order of its own and cuts the line every `sequence_length`
tokens; a sample is one cut's inputs and, shifted by one, its labels. Samples then come in a second order, so that the
cuts of one long document do not follow each other. Both orders are decided by seed, source and epoch alone. A sample is
found by binary search in the documents' running lengths, so any one can be read without the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.data.shuffle import permutation
from loong_core.data.token_store import TokenStore
from loong_core.errors import UserError


@dataclass(frozen=True)
class Sample:
    """Sequences of one row.

    Attributes:
        tokens: `[tokens]` int64, inputs.
        labels: `[tokens]` int64, the token that follows each input, or `IGNORED_LABEL`.
        lengths: tokens of each sequence in the row; attention does not cross from one to the next.
    """

    tokens: NDArray[np.int64]
    labels: NDArray[np.int64]
    lengths: list[int]


def pack(samples: Sequence[Sample]) -> PackedBatch:
    """Samples end to end as one batch."""
    return PackedBatch.from_lengths(
        torch.from_numpy(np.concatenate([sample.tokens for sample in samples])),
        torch.from_numpy(np.concatenate([sample.labels for sample in samples])),
        [length for sample in samples for length in sample.lengths],
    )


class Sequences:
    """The samples of one store, epoch after epoch.

    Args:
        store: the documents.
        sequence_length: tokens in a sample.
        attend_across_documents: whether a sample is one sequence. If not, each document in it is a sequence of its
            own, and the last token of a document has no label: nothing is predicted across the boundary.
        seed: decides the orders, with `source`.
        source: number of this store in its blend.

    Raises:
        UserError: the store has too few tokens for a single sample.
    """

    def __init__(
        self,
        store: TokenStore,
        sequence_length: int,
        *,
        attend_across_documents: bool = False,
        seed: int = 0,
        source: int = 0,
    ) -> None:
        self.store = store
        self.sequence_length = sequence_length
        self.attend_across_documents = attend_across_documents
        self.key = (seed, source)
        self.per_epoch = max(store.total_tokens - 1, 0) // sequence_length
        if self.per_epoch == 0:
            raise UserError(
                f"{store.name} holds {store.total_tokens:,} tokens in {len(store):,} documents, a sequence of "
                f"{sequence_length:,} needs {sequence_length + 1:,}; lower data.sequence_length or give more text"
            )
        self._epoch = -1
        self._documents: NDArray[np.int64] = np.zeros(0, np.int64)
        self._ends: NDArray[np.int64] = self._documents
        self._order: NDArray[np.int64] = self._documents

    def sample(self, draw: int) -> Sample:
        """The `draw`-th sample since the beginning of epoch 0."""
        epoch, position = divmod(draw, self.per_epoch)
        self._turn_to(epoch)
        pieces = self._window(int(self._order[position]) * self.sequence_length)
        window = np.concatenate(pieces).astype(np.int64)
        tokens, labels = window[:-1], window[1:].copy()
        if self.attend_across_documents:
            return Sample(tokens, labels, [self.sequence_length])
        lengths = [len(piece) for piece in pieces]
        lengths[-1] -= 1
        lengths = lengths[:-1] if lengths[-1] == 0 else lengths
        inner = np.cumsum([len(piece) for piece in pieces[:-1]], dtype=np.int64)
        labels[inner - 1] = IGNORED_LABEL
        return Sample(tokens, labels, lengths)

    def _turn_to(self, epoch: int) -> None:
        if epoch == self._epoch:
            return
        self._documents = permutation(len(self.store), *self.key, epoch, 0)
        self._ends = np.cumsum(self.store.lengths[self._documents])
        self._order = permutation(self.per_epoch, *self.key, epoch, 1)
        self._epoch = epoch

    def _window(self, start: int) -> list[NDArray]:
        """The `sequence_length + 1` tokens from `start` on, cut at document ends."""
        place = int(np.searchsorted(self._ends, start, side="right"))
        wanted = self.sequence_length + 1
        pieces = []
        while wanted:
            document = self.store.document(int(self._documents[place]))
            piece = document[len(document) - (int(self._ends[place]) - start) :][:wanted]
            pieces.append(piece)
            start, wanted, place = start + len(piece), wanted - len(piece), place + 1
        return pieces
