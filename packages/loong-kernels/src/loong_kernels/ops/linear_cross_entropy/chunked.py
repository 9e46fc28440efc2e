"""Linear cross-entropy chunk by chunk: the products here, the element-wise steps in `ChunkMaths`.

Forward: for each chunk of the vocabulary, logits, then their running softmax; only `[tokens]` vectors stay. Backward:
each chunk's logits once more, their gradient, and from it the two products. The gradient of the weight is written (or
added to a running sum) chunk by chunk; that of `hidden` is accumulated over chunks in float32.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch import distributed as dist

from loong_kernels.ops.linear_cross_entropy.chunk_maths import ChunkMaths, RunningSoftmax, TorchChunkMaths
from loong_kernels.ops.linear_cross_entropy.chunk_plan import ACCELERATOR_BUDGET, CPU_BUDGET, ChunkPlan, plan_chunks
from loong_kernels.ops.linear_cross_entropy.settings import HeadSettings
from loong_kernels.products import add_product, product

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def linear_cross_entropy_chunked(hidden: Tensor, weight: Tensor, labels: Tensor, settings: HeadSettings) -> Tensor:
    """The op with its element-wise steps in plain PyTorch: serves every device and dtype."""
    return chunked_loss(hidden, weight, labels, settings, TorchChunkMaths())


def chunked_loss(hidden: Tensor, weight: Tensor, labels: Tensor, settings: HeadSettings, maths: ChunkMaths) -> Tensor:
    """The op with the element-wise steps of `maths`; see `loong_kernels.linear_cross_entropy` for the meaning."""
    return _ChunkedLoss.apply(hidden, weight, labels, settings, maths)  # type: ignore[no-any-return]


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, settings: HeadSettings, maths: ChunkMaths
    ) -> Tensor:
        exact = torch.promote_types(hidden.dtype, torch.float32)
        plan = _plan(hidden, weight, settings, exact)
        state = RunningSoftmax.empty(hidden.shape[0], exact, hidden.device)
        for start, end in plan.rows:
            rows = weight[start:end]
            for first, last in plan.tokens:
                logits = product(hidden[first:last], rows.T, exact)
                first_row = settings.vocab_start + start
                maths.fold(logits, labels[first:last], first_row, settings.softcap, state.part(first, last))
        log_exp_sum, label_logit = whole_vocabulary(state, settings.group)
        ctx.save_for_backward(hidden, weight, labels, log_exp_sum)
        ctx.settings, ctx.maths, ctx.plan = settings, maths, plan
        return torch.where(labels == settings.ignore_index, 0, log_exp_sum - label_logit)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        hidden, weight, labels, log_exp_sum = ctx.saved_tensors
        settings: HeadSettings = ctx.settings
        plan: ChunkPlan = ctx.plan
        exact = log_exp_sum.dtype
        upstream = torch.where(labels == settings.ignore_index, 0, gradients[0].to(exact))
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        hidden_gradient = torch.zeros_like(hidden, dtype=exact) if wants_hidden else None
        into = settings.weight_grad_into
        weight_gradient = torch.empty_like(weight) if wants_weight and into is None else None
        if weight_gradient is not None:
            weight_gradient[settings.rows_of(weight) :].zero_()
        for start, end in plan.rows:
            rows = weight[start:end]
            rows_gradient: Tensor | None = None
            for first, last in plan.tokens:
                part = hidden[first:last]
                logits_gradient = ctx.maths.gradient(
                    product(part, rows.T, exact),
                    labels[first:last],
                    settings.vocab_start + start,
                    settings.softcap,
                    log_exp_sum[first:last],
                    upstream[first:last],
                    hidden.dtype,
                )
                if hidden_gradient is not None:
                    hidden_gradient[first:last] += product(logits_gradient, rows, exact)
                if wants_weight and into is not None:
                    add_product(into[start:end], logits_gradient.T, part)
                elif wants_weight:
                    # With one block of tokens the product itself accumulates in float32 and rounds once.
                    wide = exact if len(plan.tokens) > 1 else weight.dtype
                    added = product(logits_gradient.T, part, wide)
                    rows_gradient = added if rows_gradient is None else rows_gradient.add_(added)
                del logits_gradient
            if weight_gradient is not None and rows_gradient is not None:
                weight_gradient[start:end] = rows_gradient
        if hidden_gradient is not None:
            hidden_gradient = hidden_gradient.to(hidden.dtype)
        if weight_gradient is not None and not plan.tokens:
            weight_gradient.zero_()
        return hidden_gradient, weight_gradient, None, None, None


def _plan(hidden: Tensor, weight: Tensor, settings: HeadSettings, exact: torch.dtype) -> ChunkPlan:
    budget = CPU_BUDGET if hidden.device.type == "cpu" else ACCELERATOR_BUDGET
    return plan_chunks(hidden.shape[0], settings.rows_of(weight), budget, exact.itemsize, settings.chunk_size)


def whole_vocabulary(state: RunningSoftmax, group: ProcessGroup | None) -> tuple[Tensor, Tensor]:
    """Log of the sum of exponentials and the label's logit over all ranks' rows; both `[tokens]`.

    A label that no rank holds gets NaN: the loss shows it at once, on any device, without waiting for one.
    """
    maximum = state.maximum
    sums = torch.stack((state.exp_sum, state.label_logit, state.label_found))
    if group is not None:
        maximum = maximum.clone()
        dist.all_reduce(maximum, op=dist.ReduceOp.MAX, group=group)
        sums[0] *= torch.exp(state.maximum - maximum)
        dist.all_reduce(sums, group=group)
    exp_sum, label_logit, label_found = sums
    return maximum + torch.log(exp_sum), torch.where(label_found > 0, label_logit, float("nan"))
