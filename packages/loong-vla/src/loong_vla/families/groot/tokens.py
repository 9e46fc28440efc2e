"""Which of a vision-language model's tokens are pictures and which are not, gathered once for all blocks that ask."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class GatheredTokens:
    """Some tokens of each sample.

    Attributes:
        rows: `[batch, most]` int64, which of a sample's tokens they are.
        there: `[batch, most]` bool, where a sample has fewer; None: all have as many.
    """

    rows: Tensor
    there: Tensor | None

    @staticmethod
    def of(mask: Tensor) -> GatheredTokens:
        """Tokens where `mask`, `[batch, tokens]` bool, is set; best on the host, since their number is looked at."""
        counts = mask.sum(1)
        most = int(counts.max())
        rows = mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
        if int(counts.min()) == most:
            return GatheredTokens(rows, None)
        return GatheredTokens(rows, torch.arange(most, device=mask.device)[None] < counts[:, None])

    def take(self, tokens: Tensor) -> Tensor:
        """Of `[batch, tokens, width]`, `[batch, most, width]`."""
        return tokens.gather(1, self.rows[..., None].expand(-1, -1, tokens.shape[-1]))

    def to(self, device: torch.device | str) -> GatheredTokens:
        """The same on `device`."""
        return GatheredTokens(self.rows.to(device), None if self.there is None else self.there.to(device))
