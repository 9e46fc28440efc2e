"""One context rank's share of a microbatch, and what attention has to know of the others' shares.

Context ranks are a ring of groups, and the ranks of a group (Ulysses) exchange tokens for heads in attention. Each
sequence is cut in `2 * ring` chunks, and group `r` of the ring gets chunks `r` and `2 * ring - 1 - r`: under a causal
mask an early chunk sees little and a late one much, so every group has the same work, whatever the lengths (Llama 3,
https://arxiv.org/abs/2407.21783, section 3.3.2). Tokens that are over when a length is divided are dealt round the
groups, so that no group has two more than another. Nothing is padded. Within a group the ranks have equal runs of the
group's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from loong_core.data.batch import PackedBatch
from loong_core.parallel.context import ParallelContext
from loong_kernels import SequencePairs

Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RingStep:
    """What the queries of one group of the ring see of the keys of one group.

    Attributes:
        pairs: of runs of those queries and keys that see each other; None where there are none.
        query_rows: `[queries]` int64, which of the group's tokens these queries are; None for all, in order.
        key_rows: `[keys]` int64, which of the other group's tokens these keys are; None for all, in order.
    """

    pairs: SequencePairs | None
    query_rows: Tensor | None = None
    key_rows: Tensor | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> RingStep:
        """The same on `device`."""
        moved = [
            None if each is None else each.to(device, non_blocking=non_blocking)
            for each in (self.pairs, self.query_rows, self.key_rows)
        ]
        return RingStep(*moved)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class ContextShare:
    """What a context rank knows of the whole microbatch.

    Attributes:
        total_tokens: tokens of the microbatch.
        trained_tokens: scalar int64, those of them that have a label.
        group_tokens: tokens of each Ulysses rank of this rank's group, in order; they follow each other.
        ring_tokens: tokens of each group of the ring.
        steps: in the order in which keys come round the ring: this group's own, then those of the group before it, ...
    """

    total_tokens: int
    trained_tokens: Tensor
    group_tokens: tuple[int, ...]
    ring_tokens: tuple[int, ...]
    steps: tuple[RingStep, ...]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> ContextShare:
        """The same on `device`."""
        return replace(
            self,
            trained_tokens=self.trained_tokens.to(device, non_blocking=non_blocking),
            steps=tuple(step.to(device, non_blocking=non_blocking) for step in self.steps),
        )


def own_shares(microbatches: Sequence[Any], context: ParallelContext) -> Sequence[Any]:
    """This context rank's share of each microbatch; the microbatches themselves where sequences are not shared.

    Raises:
        TypeError: a microbatch is of a kind that does not know how to be shared. A kind other than `PackedBatch` has
            a method `share_for(context)`.
    """
    if context.context.size == 1:
        return microbatches
    return [_own_share(batch, context) for batch in microbatches]


def _own_share(batch: Any, context: ParallelContext) -> Any:
    if isinstance(batch, PackedBatch):
        return cut_batch(batch, context)
    if not hasattr(batch, "share_for"):
        raise TypeError(
            f"{type(batch).__name__} cannot be shared by {context.context.size} context ranks; set layout.context=1"
        )
    return batch.share_for(context)


def cut_batch(batch: PackedBatch, context: ParallelContext) -> PackedBatch:
    """This context rank's share of a whole microbatch.

    Args:
        batch: the same on every context rank, best on the host.
        context: its axes `ulysses` and `ring`.

    Raises:
        ValueError: there are fewer tokens than context ranks.
    """
    ring, ulysses = context.ring, context.ulysses
    total = batch.tokens.shape[0]
    if total < ring.size * ulysses.size:
        raise ValueError(
            f"a microbatch of {total} tokens cannot be shared by {ring.size * ulysses.size} context ranks; lower "
            "layout.context, or raise data.sequence_length or train.micro_batch_size"
        )
    lengths = batch.cu_seqlens.diff().cpu().numpy().astype(np.int64)
    chunks = chunk_sizes(lengths, ring.size)
    parts = [_Part.of(chunks, rank) for rank in range(ring.size)]
    part = parts[ring.rank]
    bounds = [number * part.tokens // ulysses.size for number in range(ulysses.size + 1)]
    rows = torch.from_numpy(part.rows(chunks)[bounds[ulysses.rank] : bounds[ulysses.rank + 1]])
    rows = rows.to(batch.tokens.device)
    held = part.lengths[part.lengths > 0]
    own = SequencePairs(_bounds(held), _bounds(held), int(held.max()), int(held.max()), causal=True)
    sources = [(ring.rank - step) % ring.size for step in range(1, ring.size)]
    share = ContextShare(
        total,
        batch.trained_tokens,
        tuple(stop - start for start, stop in pairwise(bounds)),
        tuple(each.tokens for each in parts),
        (RingStep(own), *(_step(part, parts[source]) for source in sources)),
    )
    device = batch.tokens.device
    return PackedBatch(
        tokens=batch.tokens[rows],
        labels=batch.labels[rows],
        position_ids=batch.position_ids[rows],
        cu_seqlens=own.cu_seqlens_q.to(device),
        max_seqlen=own.max_seqlen_q,
        uniform_length=own.max_seqlen_q if own.uniform(part.tokens, part.tokens) else None,
        share=share.to(device),
    )


def rows_of_ranks(batch: PackedBatch, context: ParallelContext) -> list[Tensor]:
    """Which rows of a whole microbatch each context rank gets by `cut_batch`, in order of rank."""
    ring, ulysses = context.ring.size, context.ulysses.size
    chunks = chunk_sizes(batch.cu_seqlens.diff().cpu().numpy().astype(np.int64), ring)
    found = []
    for rank in range(ring):
        rows = _Part.of(chunks, rank).rows(chunks)
        bounds = [number * len(rows) // ulysses for number in range(ulysses + 1)]
        found += [torch.from_numpy(rows[start:stop]) for start, stop in pairwise(bounds)]
    return found


def chunk_sizes(lengths: Numbers, ring: int) -> Numbers:
    """Sizes of the chunks of each sequence, `[sequences, 2 * ring]`.

    What is over is dealt one token a group, going on with the next group from sequence to sequence; a group's first
    such token of a sequence makes its early chunk longer, a second its late one.
    """
    base, over = np.divmod(lengths, 2 * ring)
    sizes = np.repeat(base[:, None], 2 * ring, axis=1)
    dealt_before = np.cumsum(over) - over
    turn = (np.arange(ring) - dealt_before[:, None]) % ring  # [sequences, ring]: when in the deal it is a group's turn
    sizes[:, :ring] += turn < over[:, None]
    sizes[:, ring:] += (turn + ring < over[:, None])[:, ::-1]
    return sizes


@dataclass(frozen=True, eq=False)
class _Part:
    """What one group of the ring has of each sequence: `[sequences]` tokens of its early and of its late chunk."""

    rank: int
    early: Numbers
    late: Numbers

    @staticmethod
    def of(chunks: Numbers, rank: int) -> _Part:
        return _Part(rank, chunks[:, rank], chunks[:, chunks.shape[1] - 1 - rank])

    @property
    def lengths(self) -> Numbers:
        return self.early + self.late

    @property
    def tokens(self) -> int:
        return int(self.lengths.sum())

    def rows(self, chunks: Numbers) -> Numbers:
        """The microbatch's rows that these tokens are, `[tokens]`, in the order in which the group has them."""
        starts = np.cumsum(chunks).reshape(chunks.shape) - chunks
        late = chunks.shape[1] - 1 - self.rank
        firsts = np.stack([starts[:, self.rank], starts[:, late]], 1).ravel()
        return _runs(firsts, np.stack([self.early, self.late], 1).ravel())


def _step(queries: _Part, keys: _Part) -> RingStep:
    """Both chunks of the queries see the early chunk of a group before, or the late one both chunks of one after."""
    query_starts = np.cumsum(queries.lengths) - queries.lengths
    key_starts = np.cumsum(keys.lengths) - keys.lengths
    query_lengths, key_lengths = queries.lengths, keys.early
    if keys.rank > queries.rank:
        query_starts, query_lengths = query_starts + queries.early, queries.late
        key_lengths = keys.lengths
    met = (query_lengths > 0) & (key_lengths > 0)
    if not met.any():
        return RingStep(None)
    query_lengths, key_lengths = query_lengths[met], key_lengths[met]
    pairs = SequencePairs(
        _bounds(query_lengths), _bounds(key_lengths), int(query_lengths.max()), int(key_lengths.max()), causal=False
    )
    return RingStep(
        pairs,
        _rows_unless_all(query_starts[met], query_lengths, queries.tokens),
        _rows_unless_all(key_starts[met], key_lengths, keys.tokens),
    )


def _rows_unless_all(starts: Numbers, lengths: Numbers, tokens: int) -> Tensor | None:
    return None if int(lengths.sum()) == tokens else torch.from_numpy(_runs(starts, lengths))


def _runs(starts: Numbers, lengths: Numbers) -> Numbers:
    """The numbers of runs, one after the other: `start, start + 1, ...` as many as its length."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(starts - before, lengths)


def _bounds(lengths: Numbers) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
