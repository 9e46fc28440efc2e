"""Rounding to 8 bits in plain PyTorch: what every implementation must equal, bit for bit."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from loong_kernels.fp8.formats import E4M3, TILE, Grain, Operand, Quantised, block_columns, padded, scales_for


def quantise_reference(x: Tensor, grain: Grain, by_row: bool, by_column: bool) -> Quantised:
    """Either side from the padded matrix; see `loong_kernels.ops.quantise.quantise`."""
    exact = x.to(torch.promote_types(x.dtype, torch.float32))
    exact = F.pad(exact, (0, 0, 0, padded(x.shape[0]) - x.shape[0]))
    return Quantised(
        _operand(exact, grain) if by_row else None, _operand(exact.T.contiguous(), grain) if by_column else None
    )


def _operand(x: Tensor, grain: Grain) -> Operand:
    summed = x.shape[1]
    size = x.abs()
    if grain == "tiles":
        scales = scales_for(size.unflatten(1, (-1, TILE)).amax(2)).T.contiguous()
    elif grain == "blocks":
        scales = scales_for(size.unflatten(1, (-1, TILE)).unflatten(0, (-1, TILE)).amax((1, 3)))
        scales = F.pad(scales, (0, block_columns(summed) - scales.shape[1]), value=1.0)
    elif grain == "rows":
        scales = scales_for(size.amax(1))
    else:
        scales = scales_for(size.amax().reshape(1) if size.numel() else size.new_zeros(1))
    unit = Operand(torch.ones_like(x), scales, grain).dequantised(x.dtype)
    return Operand((x / unit).to(E4M3), scales.to(torch.float32), grain)
