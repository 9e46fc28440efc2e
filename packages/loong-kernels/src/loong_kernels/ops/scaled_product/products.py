"""8-bit products by cuBLASLt: called directly, and through torch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.functional import ScalingType

from loong_kernels import cublaslt
from loong_kernels.fp8.formats import Operand

_TYPES = {
    "tiles": ScalingType.BlockWise1x128,
    "blocks": ScalingType.BlockWise128x128,
    "rows": ScalingType.RowWise,
    "tensor": ScalingType.TensorWise,
}


def scaled_product_cublaslt(left: Operand, right: Operand, dtype: torch.dtype, total: Tensor | None) -> Tensor | None:
    """The op by cuBLASLt itself, which adds to the sum within the product."""
    rows, columns = left.values.shape[0], right.values.shape[0]
    out = torch.empty(rows, columns, dtype=dtype, device=left.values.device) if total is None else total
    if rows and columns:
        cublaslt.product(
            out,
            left.values,
            right.values.T,
            add=total is not None,
            left_scaled=cublaslt.Scaled(left.scales, left.grain),
            right_scaled=cublaslt.Scaled(right.scales, right.grain),
        )
    return out if total is None else None


def scaled_product_scaled_mm(left: Operand, right: Operand, dtype: torch.dtype, total: Tensor | None) -> Tensor | None:
    """The op by `torch.nn.functional.scaled_mm`; a sum is added to by a pass of its own."""
    if not left.values.shape[0]:
        return left.values.new_empty(0, right.values.shape[0], dtype=dtype) if total is None else None
    made = F.scaled_mm(
        left.values,
        right.values.T,
        _scales(left),
        _TYPES[left.grain],
        _scales(right).T if right.grain == "rows" else _scales(right),
        _TYPES[right.grain],
        output_dtype=dtype if total is None else torch.float32,
    )
    if total is None:
        return made
    total.add_(made)
    return None


def _scales(operand: Operand) -> Tensor:
    """As torch wants them: two dimensions, that of the summed elements last."""
    if operand.grain == "tiles":
        return operand.scales.T
    if operand.grain == "blocks":
        return operand.scales.T  # [padded blocks of the sum, blocks of rows]
    return operand.scales[:, None] if operand.grain == "rows" else operand.scales
