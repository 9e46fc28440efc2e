"""The product of two matrices in 8 bits with scales, added to a running sum where one is given."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.fp8.formats import Grain, Operand
from loong_kernels.ops.scaled_product.reference import scaled_product_reference
from loong_kernels.registry import REGISTRY, Implementation

OP = REGISTRY.define(
    "scaled_product", "product of two matrices in 8 bits", "loong_kernels.ops.scaled_product.samples:samples"
)


class ScaledProductCase(NamedTuple):
    """Shape class of `scaled_product`; whether rows are many or few is left out."""

    device: str
    dtype: torch.dtype
    left: Grain
    right: Grain
    summed: int
    columns: int
    into_sum: bool


@torch.no_grad()
def scaled_product(left: Operand, right: Operand, dtype: torch.dtype, *, total: Tensor | None = None) -> Tensor | None:
    """`left rightᵀ`, accumulated in float32 (the reference: in `dtype` where that is wider).

    Args:
        left: `[rows, summed]` of grain `tiles`, `rows` or `tensor`.
        right: `[columns, summed]`; with `tiles` it is `tiles` or `blocks`, else of the grain of `left`.
        dtype: of the result.
        total: `[rows, columns]` float32 or float64; if given, the product is added to it and None is returned.

    Returns:
        `[rows, columns]` in `dtype`.

    Raises:
        ValueError: sizes or grains do not fit each other; the message says which.
    """
    grains = (left.grain, right.grain)
    fits = grains in (("tiles", "tiles"), ("tiles", "blocks"), ("rows", "rows"), ("tensor", "tensor"))
    if left.values.shape[1] != right.values.shape[1] or not fits:
        raise ValueError(
            f"scaled_product cannot multiply {list(left.values.shape)} by {left.grain} with the transpose of "
            f"{list(right.values.shape)} by {right.grain}"
        )
    columns, summed = right.values.shape
    case = ScaledProductCase(left.values.device.type, dtype, *grains, summed, columns, total is not None)
    return OP.serve(case)(left, right, dtype, total)


def _missing() -> str | None:
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability != (9, 0):
        return f"the GPU's compute capability is {capability}, not (9, 0)"
    return None if torch.version.cuda and int(torch.version.cuda.split(".")[0]) >= 13 else "torch is built for CUDA 12"


def _supports(case: ScaledProductCase) -> str | None:
    if case.dtype not in (torch.bfloat16, torch.float32):
        return f"makes bfloat16 and float32, not {case.dtype}"
    if case.summed % 128 or case.columns % 128:
        return f"{case.summed} summed elements and {case.columns} columns are not both multiples of 128"
    return None


NEEDS = "an NVIDIA GPU of compute capability 9.0 and CUDA 13"

REGISTRY.register(Implementation("reference", OP.name, ("*",), scaled_product_reference))
REGISTRY.register(
    Implementation(
        name="cublaslt",
        op=OP.name,
        devices=("cuda",),
        fn="loong_kernels.ops.scaled_product.products:scaled_product_cublaslt",
        priority=100,
        available=_missing,
        supports=_supports,
        needs=NEEDS,
    )
)
REGISTRY.register(
    Implementation(
        name="scaled_mm",
        op=OP.name,
        devices=("cuda",),
        fn="loong_kernels.ops.scaled_product.products:scaled_product_scaled_mm",
        priority=50,
        available=_missing,
        supports=_supports,
        needs=NEEDS,
    )
)
