"""SwiGLU and its gradient, rounded to 8 bits for the products that take them, in the pass that computes them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.fp8.formats import TILE, Grain, Quantised
from loong_kernels.ops.quantise_swiglu.reference import quantise_swiglu_gradient_reference, quantise_swiglu_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype, without_tensor_copies

SAMPLES = "loong_kernels.ops.quantise_swiglu.samples"
FORWARD = REGISTRY.define("quantise_swiglu", "SwiGLU in 8 bits with scales", f"{SAMPLES}:samples")
BACKWARD = REGISTRY.define(
    "quantise_swiglu_gradient", "the gradient of SwiGLU in 8 bits with scales", f"{SAMPLES}:gradient_samples"
)


class QuantiseSwiGLUCase(NamedTuple):
    """Shape class of both ops."""

    device: str
    dtype: torch.dtype
    grain: Grain
    by_row: bool
    by_column: bool
    kept: bool


class SwiGLUInBits(NamedTuple):
    """What the ops return.

    Attributes:
        quantised: in 8 bits, see `loong_kernels.ops.quantise.quantise`.
        kept: the same before it was rounded to 8 bits, `[tokens, width]`; None if not asked for.
    """

    quantised: Quantised
    kept: Tensor | None


@torch.no_grad()
def quantise_swiglu(
    gate_up: Tensor, grain: Grain, *, by_row: bool = True, by_column: bool = True, keep: bool = False
) -> SwiGLUInBits:
    """`quantise(swiglu(gate_up))`.

    Args:
        gate_up: `[tokens, 2 * intermediate]`, `intermediate` a multiple of 128.
        grain: `tiles`, `rows` or `tensor`.
        by_row: as of `quantise`.
        by_column: as of `quantise`.
        keep: whether SwiGLU in the dtype of `gate_up` is wanted too.

    Raises:
        ValueError: the width is no multiple of 256.
    """
    _check("quantise_swiglu", gate_up)
    case = QuantiseSwiGLUCase(gate_up.device.type, gate_up.dtype, grain, by_row, by_column, keep)
    return FORWARD.serve(case)(gate_up, grain, by_row, by_column, keep)


@torch.no_grad()
def quantise_swiglu_gradient(
    upstream: Tensor,
    gate_up: Tensor,
    grain: Grain,
    *,
    by_row: bool = True,
    by_column: bool = True,
    keep: bool = False,
) -> SwiGLUInBits:
    """The gradient of `gate_up`, `[tokens, 2 * intermediate]`, in 8 bits.

    Args:
        upstream: the gradient of SwiGLU's result, `[tokens, intermediate]`.
        gate_up: `[tokens, 2 * intermediate]`.
        grain: as of `quantise_swiglu`, like what follows.
        by_row: likewise.
        by_column: likewise.
        keep: whether the gradient in the dtype of `gate_up` is wanted too.

    Raises:
        ValueError: the width is no multiple of 256.
    """
    _check("quantise_swiglu_gradient", gate_up)
    case = QuantiseSwiGLUCase(gate_up.device.type, gate_up.dtype, grain, by_row, by_column, keep)
    return BACKWARD.serve(case)(upstream, gate_up, grain, by_row, by_column, keep)


def _check(op: str, gate_up: Tensor) -> None:
    if gate_up.ndim != 2 or gate_up.shape[1] % (2 * TILE):
        raise ValueError(f"{op} wants [tokens, width] with a width in multiples of {2 * TILE}, got {gate_up.shape}")


def _triton_supports(case: QuantiseSwiGLUCase) -> str | None:
    if case.grain != "tiles":
        return f"scales by {case.grain} need the largest elements first"
    return unsupported_dtype(case.dtype) or without_tensor_copies(case.device)


REGISTRY.register(Implementation("reference", FORWARD.name, ("*",), quantise_swiglu_reference))
REGISTRY.register(Implementation("reference", BACKWARD.name, ("*",), quantise_swiglu_gradient_reference))
KERNELS = "loong_kernels.ops.quantise_swiglu.triton_kernels"
register_triton(REGISTRY, FORWARD.name, f"{KERNELS}:quantise_swiglu_triton", _triton_supports)
register_triton(REGISTRY, BACKWARD.name, f"{KERNELS}:quantise_swiglu_gradient_triton", _triton_supports)
REGISTRY.register(
    Implementation("apart", FORWARD.name, ("*",), "loong_kernels.ops.quantise_swiglu.apart:quantise_swiglu_apart",
                   priority=10)
)  # fmt: skip
REGISTRY.register(
    Implementation("apart", BACKWARD.name, ("*",),
                   "loong_kernels.ops.quantise_swiglu.apart:quantise_swiglu_gradient_apart", priority=10)
)  # fmt: skip
