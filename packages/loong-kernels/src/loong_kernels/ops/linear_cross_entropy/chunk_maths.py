"""What happens to one chunk of logits, element by element: plain PyTorch, in place on the chunk.

The softmax over the whole vocabulary is assembled from chunks by a running maximum and sum of exponentials (Milakov and
Gimelshein 2018, https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class RunningSoftmax:
    """What is known of each token after some chunks; all `[tokens]` in the dtype of the arithmetic.

    Attributes:
        maximum: largest logit so far.
        exp_sum: sum of `exp(logit - maximum)`.
        label_logit: the label's logit, 0 until its chunk came.
        label_found: 1 once the label's chunk came, else 0.
    """

    maximum: Tensor
    exp_sum: Tensor
    label_logit: Tensor
    label_found: Tensor

    @staticmethod
    def empty(tokens: int, dtype: torch.dtype, device: torch.device) -> RunningSoftmax:
        """Before the first chunk."""
        maximum = torch.full((tokens,), float("-inf"), dtype=dtype, device=device)
        return RunningSoftmax(maximum, *torch.zeros(3, tokens, dtype=dtype, device=device))

    def part(self, start: int, end: int) -> RunningSoftmax:
        """Views of the tokens `[start, end)`."""
        return RunningSoftmax(
            self.maximum[start:end], self.exp_sum[start:end], self.label_logit[start:end], self.label_found[start:end]
        )


class ChunkMaths(Protocol):
    """The two element-wise steps of a chunk; an implementation of the op may bring its own."""

    def fold(
        self, logits: Tensor, labels: Tensor, first_row: int, softcap: float | None, state: RunningSoftmax
    ) -> None:
        """Take a chunk into `state`, in place.

        Args:
            logits: `[tokens, rows]` before the soft cap; may be overwritten.
            labels: `[tokens]` int64.
            first_row: the id of the chunk's first row.
            softcap: see `linear_cross_entropy`.
            state: of the same tokens.
        """
        ...

    def gradient(
        self,
        logits: Tensor,
        labels: Tensor,
        first_row: int,
        softcap: float | None,
        log_exp_sum: Tensor,
        upstream: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        """Gradient of a chunk's logits: `(softmax - one_hot(label)) * upstream`, times the soft cap's slope.

        Args:
            logits: `[tokens, rows]` before the soft cap; may be overwritten.
            labels: `[tokens]` int64.
            first_row: the id of the chunk's first row.
            softcap: see `linear_cross_entropy`.
            log_exp_sum: `[tokens]`, log of the sum of exponentials over the whole vocabulary.
            upstream: `[tokens]`, gradient of each token's loss, 0 where the label is ignored.
            dtype: of the result, which feeds two matrix products.

        Returns:
            `[tokens, rows]` in `dtype`.
        """
        ...


class TorchChunkMaths:
    """The steps in plain PyTorch; holds at most one more chunk than the logits given."""

    def fold(
        self, logits: Tensor, labels: Tensor, first_row: int, softcap: float | None, state: RunningSoftmax
    ) -> None:
        """See `ChunkMaths.fold`."""
        if softcap is not None:
            logits.div_(softcap).tanh_().mul_(softcap)
        column, here = label_column(labels, first_row, logits.shape[1])
        label_logit = logits.gather(1, column[:, None])[:, 0]
        state.label_logit.add_(torch.where(here, label_logit, 0))
        state.label_found.add_(here)
        maximum = torch.maximum(state.maximum, logits.amax(1))
        state.exp_sum.mul_(torch.exp(state.maximum - maximum)).add_(logits.sub_(maximum[:, None]).exp_().sum(1))
        state.maximum.copy_(maximum)

    def gradient(
        self,
        logits: Tensor,
        labels: Tensor,
        first_row: int,
        softcap: float | None,
        log_exp_sum: Tensor,
        upstream: Tensor,
        dtype: torch.dtype,
    ) -> Tensor:
        """See `ChunkMaths.gradient`."""
        slope = None
        if softcap is not None:
            capped = logits.div_(softcap).tanh_()
            slope = 1 - capped.square()
            logits = capped.mul_(softcap)
        gradient = logits.sub_(log_exp_sum[:, None]).exp_().mul_(upstream[:, None])
        column, here = label_column(labels, first_row, logits.shape[1])
        gradient.scatter_add_(1, column[:, None], torch.where(here, -upstream, 0)[:, None])
        if slope is not None:
            gradient.mul_(slope)
        return gradient.to(dtype)


def label_column(labels: Tensor, first_row: int, rows: int) -> tuple[Tensor, Tensor]:
    """Each label's column in the chunk (any valid one if it is elsewhere) and whether it is here; both `[tokens]`."""
    column = labels - first_row
    here = (column >= 0) & (column < rows)
    return column.clamp(0, rows - 1), here
