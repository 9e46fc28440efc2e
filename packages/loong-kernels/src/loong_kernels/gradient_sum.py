"""A gradient that is added to a running sum instead of being returned.

An engine that sums gradients over microbatches in float32 hands an op the sum of its weight (`weight_grad_into`). The
op then adds its weight gradient there, best within the product that makes it, and returns none for the weight: what
autograd accumulates is only what other uses of the weight return, so the two never count anything twice.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def with_gradient_into(weight: Tensor, total: Tensor | None) -> Tensor:
    """`weight`, with a gradient that is added to `total`; unchanged where `total` is None. For references."""
    return weight if total is None else _GradientInto.apply(weight, total)  # type: ignore[no-any-return]


def check_sum(op: str, weight: Tensor, total: Tensor | None) -> None:
    """See that `total` can take the weight's gradient.

    Raises:
        ValueError: it has another shape, or a narrower dtype than float32.
    """
    if total is None:
        return
    if total.shape != weight.shape or total.dtype not in (torch.float32, torch.float64):
        raise ValueError(
            f"{op} adds the gradient of a weight {list(weight.shape)} to a sum of that shape in float32 or float64; "
            f"weight_grad_into is {list(total.shape)} in {str(total.dtype).removeprefix('torch.')}"
        )


class _GradientInto(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, total: Tensor) -> Tensor:
        ctx.total = total
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, None]:
        ctx.total.add_(gradients[0])
        return None, None
