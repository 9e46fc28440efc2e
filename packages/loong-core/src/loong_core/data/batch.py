"""The one form in which token sequences travel: packed end to end, without padding."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

IGNORED_LABEL = -100
"""Label of a position that is not trained on (the convention of transformers)."""


@dataclass(frozen=True)
class PackedBatch:
    """Sequences laid end to end.

    Attributes:
        tokens: `[tokens]` int64, input ids.
        labels: `[tokens]` int64, the id that follows each input id, or `IGNORED_LABEL`.
        position_ids: `[tokens]` int64, restarting at 0 with each sequence.
        cu_seqlens: `[sequences + 1]` int32, start of each sequence and, last, the number of tokens. Attention never
            crosses these boundaries.
        max_seqlen: length of the longest sequence, a Python int so that no kernel launch waits for the device.
        uniform_length: the common length if all sequences share one (dense attention then serves), else None.
    """

    tokens: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    uniform_length: int | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> PackedBatch:
        """The same batch on `device`."""
        moved = {
            field.name: value.to(device, non_blocking=non_blocking)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **moved)

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
