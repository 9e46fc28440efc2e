"""Linear cross-entropy in three products instead of four: what backward needs of the logits is kept, in 16 bits.

Forward: the logits of a block of tokens in float32, and from them `exp(logit - shift)` in the dtype of `hidden`, kept
for all tokens, with a shift a token. The softmax is that times a factor a token, and a factor a token passes through
both products of backward: it scales the rows of `hidden`'s gradient, and the rows of `hidden` in the weight's. So the
logits' gradient is never computed, only its label's column is set right (`exp - sum of exp`, before rounding: a
prediction that is nearly certain keeps its small gradient).
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

from loong_kernels.ops.linear_cross_entropy.chunk_maths import RunningSoftmax, label_column
from loong_kernels.ops.linear_cross_entropy.chunk_plan import ACCELERATOR_BUDGET, CPU_BUDGET
from loong_kernels.ops.linear_cross_entropy.chunked import linear_cross_entropy_chunked, whole_vocabulary
from loong_kernels.ops.linear_cross_entropy.settings import HeadSettings
from loong_kernels.products import add_product, product

WIDEST_GAP = 80.0
"""A rank whose rows hold next to nothing of a token's probability has a shift far below the logarithm of the sum. Its
exponentials are then less than exp(-40) of the sum, and count as that: what keeps `exp(gap)` finite changes nothing."""
ROW_MULTIPLE = 64
"""Rows of what is kept are padded to multiples of this many elements: products read aligned vectors only."""


class KeptMaths(Protocol):
    """The element-wise steps; an implementation of the op may bring its own."""

    def exponentials(
        self, logits: Tensor, labels: Tensor, first_row: int, softcap: float | None, kept: Tensor, state: RunningSoftmax
    ) -> None:
        """Write `exp(logit - shift)` times the soft cap's slope to `kept`, and each token's sums to `state`.

        Args:
            logits: `[tokens, rows]` before the soft cap, all rows of this rank; may be overwritten.
            labels: `[tokens]` int64.
            first_row: the id of the first row.
            softcap: see `linear_cross_entropy`.
            kept: `[tokens, rows]` in the dtype of `hidden`.
            state: of these tokens; `maximum` gets the shift, which may be below the largest logit as long as nothing
                overflows, `exp_sum` the sum without the slope, the label's two what they say.
        """
        ...

    def scaled(self, x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
        """`x * factor[:, None]`, rounded once to `dtype`; `x` `[tokens, hidden]`, `factor` `[tokens]`."""
        ...


class TorchKeptMaths:
    """The steps in plain PyTorch."""

    def exponentials(
        self, logits: Tensor, labels: Tensor, first_row: int, softcap: float | None, kept: Tensor, state: RunningSoftmax
    ) -> None:
        """See `KeptMaths.exponentials`."""
        slope = None
        if softcap is not None:
            capped = logits.div_(softcap).tanh_()
            slope = 1 - capped.square()
            logits = capped.mul_(softcap)
        column, here = label_column(labels, first_row, logits.shape[1])
        state.label_logit.copy_(torch.where(here, logits.gather(1, column[:, None])[:, 0], 0))
        state.label_found.copy_(here)
        state.maximum.copy_(logits.amax(1))
        exponentials = logits.sub_(state.maximum[:, None]).exp_()
        state.exp_sum.copy_(exponentials.sum(1))
        kept.copy_(exponentials if slope is None else exponentials.mul_(slope))

    def scaled(self, x: Tensor, factor: Tensor, dtype: torch.dtype) -> Tensor:
        """See `KeptMaths.scaled`."""
        return (x * factor[:, None]).to(dtype)


def linear_cross_entropy_kept(hidden: Tensor, weight: Tensor, labels: Tensor, settings: HeadSettings) -> Tensor:
    """The op with its element-wise steps in plain PyTorch, whatever it keeps."""
    if not needs_gradient(hidden, weight):
        return linear_cross_entropy_chunked(hidden, weight, labels, settings)
    return kept_loss(hidden, weight, labels, settings, TorchKeptMaths())


def needs_gradient(hidden: Tensor, weight: Tensor) -> bool:
    """Whether there will be a backward."""
    return torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)


def kept_bytes(hidden: Tensor, weight: Tensor, settings: HeadSettings) -> int:
    """What is kept for backward."""
    return hidden.shape[0] * _padded(settings.rows_of(weight)) * hidden.element_size()


def kept_loss(hidden: Tensor, weight: Tensor, labels: Tensor, settings: HeadSettings, maths: KeptMaths) -> Tensor:
    """The op with the element-wise steps of `maths`; see `loong_kernels.linear_cross_entropy` for the meaning."""
    return _KeptLoss.apply(hidden, weight, labels, settings, maths)  # type: ignore[no-any-return]


class _KeptLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, settings: HeadSettings, maths: KeptMaths
    ) -> Tensor:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        tokens, rows = hidden.shape[0], settings.rows_of(weight)
        kept = torch.empty((tokens, _padded(rows)), dtype=hidden.dtype, device=hidden.device)[:, :rows]
        state = RunningSoftmax.empty(tokens, exact, hidden.device)
        budget = CPU_BUDGET if hidden.device.type == "cpu" else ACCELERATOR_BUDGET
        block = max(1, budget // (exact.itemsize * max(rows, 1)))
        for first in range(0, tokens if rows else 0, block):
            part = slice(first, min(first + block, tokens))
            logits = product(hidden[part], weight[:rows].T, exact)
            maths.exponentials(
                logits,
                labels[part],
                settings.vocab_start,
                settings.softcap,
                kept[part],
                state.part(part.start, part.stop),
            )
            del logits
        log_exp_sum, label_logit = whole_vocabulary(state, settings.group)
        gap = (log_exp_sum - state.maximum).clamp(max=WIDEST_GAP)
        if rows:
            _set_label_column(kept, labels, state, gap, settings)
        shrink = torch.exp(-gap)
        ctx.save_for_backward(hidden, weight, labels, kept, shrink)
        ctx.settings, ctx.maths = settings, maths
        return torch.where(labels == settings.ignore_index, 0, log_exp_sum - label_logit)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, labels, kept, shrink = ctx.saved_tensors
        settings: HeadSettings = ctx.settings
        exact, rows = shrink.dtype, kept.shape[1]
        upstream = torch.where(labels == settings.ignore_index, 0, gradients[0].to(exact))
        factor = upstream * shrink
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        hidden_gradient = weight_gradient = None
        if wants_hidden:
            hidden_gradient = ctx.maths.scaled(product(kept, weight[:rows], exact), factor, hidden.dtype)
        if wants_weight:
            scaled = ctx.maths.scaled(hidden, factor, hidden.dtype)
            if settings.weight_grad_into is not None:
                add_product(settings.weight_grad_into[:rows], kept.T, scaled)
            else:
                weight_gradient = torch.empty_like(weight)
                weight_gradient[:rows] = product(kept.T, scaled, weight.dtype)
                weight_gradient[rows:].zero_()
        return hidden_gradient, weight_gradient, None, None, None


def _set_label_column(kept: Tensor, labels: Tensor, state: RunningSoftmax, gap: Tensor, settings: HeadSettings) -> None:
    """Where the label's row is this rank's, `exp(logit - shift)` less the sum over the whole vocabulary."""
    column, here = label_column(labels, settings.vocab_start, kept.shape[1])
    label = torch.exp(state.label_logit - state.maximum) - torch.exp(gap)
    if settings.softcap is not None:
        label *= 1 - (state.label_logit / settings.softcap).square()
    place = column[:, None]
    kept.scatter_(1, place, torch.where(here[:, None], label[:, None].to(kept.dtype), kept.gather(1, place)))


def _padded(rows: int) -> int:
    return -(-rows // ROW_MULTIPLE) * ROW_MULTIPLE
