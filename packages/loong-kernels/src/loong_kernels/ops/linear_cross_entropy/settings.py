"""The arguments of `linear_cross_entropy` that are not tensors, as its implementations receive them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


@dataclass(frozen=True)
class HeadSettings:
    """See `loong_kernels.linear_cross_entropy` for the meaning of each."""

    ignore_index: int = -100
    chunk_size: int | None = None
    group: ProcessGroup | None = None
    vocab_start: int = 0
    valid_vocab: int | None = None
    softcap: float | None = None
    weight_grad_into: Tensor | None = None

    def rows_of(self, weight: Tensor) -> int:
        """How many rows of this rank's `weight` belong to the true vocabulary."""
        if self.valid_vocab is None:
            return weight.shape[0]
        return min(max(self.valid_vocab - self.vocab_start, 0), weight.shape[0])
