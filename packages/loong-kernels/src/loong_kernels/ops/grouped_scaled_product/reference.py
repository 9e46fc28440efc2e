"""Grouped 8-bit products as a loop over the experts: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.fp8.formats import Operand


def grouped_scaled_product_reference(
    left: Operand, rows: int, right: Operand, offsets: Tensor, dtype: torch.dtype, side_by_side: bool
) -> Tensor:
    """The numbers that the 8 bits stand for, multiplied in float32 or wider; waits for the device to learn the runs."""
    exact = torch.promote_types(dtype, torch.float32)
    x = left.dequantised(exact)[:rows]
    matrices = right.dequantised(exact).chunk(offsets.shape[0], 1 if side_by_side else 0)
    ends = offsets.tolist()
    runs = zip([0, *ends[:-1]], ends, matrices)
    return torch.cat([x[start:end] @ matrix.T for start, end, matrix in runs]).to(dtype)
