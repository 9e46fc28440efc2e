"""The one form in which token sequences travel: packed end to end, without padding."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from loong_core.data.context_cut import ContextShare

IGNORED_LABEL = -100
"""Label of a position that is not trained on (the convention of transformers)."""


@dataclass(frozen=True)
class PackedBatch:
    """Sequences laid end to end, or one context rank's share of their tokens (see `loong_core.data.context_cut`).

    Attributes:
        tokens: `[tokens]` int64, input ids.
        labels: `[tokens]` int64, the id that follows each input id, or `IGNORED_LABEL`.
        position_ids: `[tokens]` int64, restarting at 0 with each sequence; `[tokens, axes]` for models whose rotary
            embedding turns by several axes.
        cu_seqlens: `[sequences + 1]` int32, start of each sequence and, last, the number of tokens. Attention never
            crosses these boundaries.
        max_seqlen: length of the longest sequence, a Python int so that no kernel launch waits for the device.
        uniform_length: the common length if all sequences share one (dense attention then serves), else None.
        share: None where the batch is whole. Else `tokens`, `labels` and `position_ids` are this context rank's, and
            the three fields before this one describe the tokens that its group of Ulysses ranks has together.
    """

    tokens: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    uniform_length: int | None = None
    share: ContextShare | None = None

    @property
    def total_tokens(self) -> int:
        """Tokens of the microbatch on all context ranks together."""
        return self.tokens.shape[0] if self.share is None else self.share.total_tokens

    @property
    def trained_tokens(self) -> Tensor:
        """Scalar int64: those of them that have a label."""
        return (self.labels != IGNORED_LABEL).sum() if self.share is None else self.share.trained_tokens

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedBatch:
        """The same batch on `device`."""
        moved = {
            field.name: value.to(device, non_blocking=non_blocking)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        share = None if self.share is None else self.share.to(device, non_blocking=non_blocking)
        return replace(self, **moved, share=share)

    @staticmethod
    def from_lengths(tokens: Tensor, labels: Tensor, lengths: list[int]) -> PackedBatch:
        """Pack `tokens` and `labels` (`[tokens]`), whose sequences have the given lengths, in order."""
        if sum(lengths) != tokens.numel() or tokens.shape != labels.shape:
            raise ValueError(
                f"sequences of {sum(lengths)} tokens in all, but {tokens.numel()} tokens and {labels.numel()} labels"
            )
        bounds = torch.zeros(len(lengths) + 1, dtype=torch.int32)
        bounds[1:] = torch.tensor(lengths, dtype=torch.int32).cumsum(0)
        starts = torch.repeat_interleave(bounds[:-1], bounds.diff(), output_size=tokens.numel())
        positions = torch.arange(tokens.numel()) - starts
        uniform = lengths[0] if len(set(lengths)) == 1 else None
        return PackedBatch(tokens, labels, positions, bounds, max(lengths), uniform)
