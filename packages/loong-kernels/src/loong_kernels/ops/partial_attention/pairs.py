"""Which runs of packed queries see which runs of packed keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class SequencePairs:
    """Run `i` of the queries sees run `i` of the keys, and no other. No run is empty.

    Attributes:
        cu_seqlens_q: `[runs + 1]` int32: 0, each run's end among the queries.
        cu_seqlens_k: `[runs + 1]` int32, likewise among the keys.
        max_seqlen_q: length of the longest run of queries.
        max_seqlen_k: length of the longest run of keys.
        causal: whether token `n` of a run sees tokens up to `n` only; its runs of queries and keys are then the same.
    """

    cu_seqlens_q: Tensor
    cu_seqlens_k: Tensor
    max_seqlen_q: int
    max_seqlen_k: int
    causal: bool

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> SequencePairs:
        """The same on `device`."""
        return SequencePairs(
            self.cu_seqlens_q.to(device, non_blocking=non_blocking),
            self.cu_seqlens_k.to(device, non_blocking=non_blocking),
            self.max_seqlen_q,
            self.max_seqlen_k,
            self.causal,
        )

    @property
    def runs(self) -> int:
        """How many runs there are."""
        return self.cu_seqlens_q.shape[0] - 1

    def uniform(self, queries: int, keys: int) -> bool:
        """Whether all runs of these many packed queries are of one length, and all runs of these many keys."""
        return queries == self.runs * self.max_seqlen_q and keys == self.runs * self.max_seqlen_k
