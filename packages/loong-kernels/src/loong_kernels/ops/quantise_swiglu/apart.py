"""SwiGLU and its gradient by the op `swiglu`, then rounded to 8 bits by the op `quantise`."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.fp8.formats import Grain
from loong_kernels.ops.quantise import quantise
from loong_kernels.ops.quantise_swiglu import SwiGLUInBits
from loong_kernels.ops.swiglu import swiglu


def quantise_swiglu_apart(gate_up: Tensor, grain: Grain, by_row: bool, by_column: bool, keep: bool) -> SwiGLUInBits:
    """The forward op."""
    made = swiglu(gate_up)
    return SwiGLUInBits(quantise(made, grain, by_row=by_row, by_column=by_column), made if keep else None)


def quantise_swiglu_gradient_apart(
    upstream: Tensor, gate_up: Tensor, grain: Grain, by_row: bool, by_column: bool, keep: bool
) -> SwiGLUInBits:
    """The backward op."""
    with torch.enable_grad():
        leaf = gate_up.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(swiglu(leaf), leaf, upstream)
    return SwiGLUInBits(quantise(gradient, grain, by_row=by_row, by_column=by_column), gradient if keep else None)
