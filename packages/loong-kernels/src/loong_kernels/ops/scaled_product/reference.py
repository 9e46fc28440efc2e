"""The product of the numbers that two 8-bit matrices stand for: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.fp8.formats import Operand


def scaled_product_reference(left: Operand, right: Operand, dtype: torch.dtype, total: Tensor | None) -> Tensor | None:
    """In float32, or in `dtype` where that is wider."""
    exact = torch.promote_types(dtype if total is None else total.dtype, torch.float32)
    made = left.dequantised(exact) @ right.dequantised(exact).T
    if total is None:
        return made.to(dtype)
    total.add_(made)
    return None
