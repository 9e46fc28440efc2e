"""SwiGLU, its gradient and the rounding to 8 bits in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loong_kernels.fp8.formats import Grain
from loong_kernels.ops.quantise.reference import quantise_reference
from loong_kernels.ops.swiglu.reference import swiglu_reference

if TYPE_CHECKING:
    from loong_kernels.ops.quantise_swiglu import SwiGLUInBits


def quantise_swiglu_reference(gate_up: Tensor, grain: Grain, by_row: bool, by_column: bool, keep: bool) -> SwiGLUInBits:
    """SwiGLU, rounded to its dtype, rounded to 8 bits."""
    return _result(swiglu_reference(gate_up), grain, by_row, by_column, keep)


def quantise_swiglu_gradient_reference(
    upstream: Tensor, gate_up: Tensor, grain: Grain, by_row: bool, by_column: bool, keep: bool
) -> SwiGLUInBits:
    """The gradient by autograd, rounded likewise."""
    with torch.enable_grad():
        leaf = gate_up.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(swiglu_reference(leaf), leaf, upstream)
    return _result(gradient, grain, by_row, by_column, keep)


def _result(made: Tensor, grain: Grain, by_row: bool, by_column: bool, keep: bool) -> SwiGLUInBits:
    from loong_kernels.ops.quantise_swiglu import SwiGLUInBits

    return SwiGLUInBits(quantise_reference(made, grain, by_row, by_column), made if keep else None)
