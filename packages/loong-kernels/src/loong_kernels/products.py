"""Matrix products whose result is wider than their operands: bfloat16 in, float32 out or added to."""

from __future__ import annotations

import torch
from torch import Tensor


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """`left @ right`, accumulated and returned in `dtype`, which may be wider than the operands'."""
    if left.dtype == right.dtype == dtype:
        return left @ right
    if _has_mixed_product(left, right, dtype):
        return torch.mm(left, right, out_dtype=dtype)
    exact = torch.promote_types(dtype, torch.float32)
    return (left.to(exact) @ right.to(exact)).to(dtype)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """`total += left @ right`, in place and in the dtype of `total`, which may be wider than the operands'.

    On a GPU it is one product that reads and writes `total` once.
    """
    if left.dtype == right.dtype == total.dtype:
        total.addmm_(left, right)
    elif _has_mixed_product(left, right, total.dtype):
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.add_(left.to(total.dtype) @ right.to(total.dtype))


def _has_mixed_product(left: Tensor, right: Tensor, dtype: torch.dtype) -> bool:
    """Whether torch multiplies operands of 16 bits into float32, which it does on CUDA GPUs only."""
    return left.is_cuda and left.dtype == right.dtype and left.dtype.itemsize == 2 and dtype == torch.float32
