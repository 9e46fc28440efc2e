"""Frozen matrices in 4 bits (NF4 of QLoRA, arXiv:2305.14314), which adapters are trained on top of.

A matrix is stored as one of 16 values a number, the quantiles of a normal distribution, times the largest magnitude of
its block of 64 numbers of a row. Who multiplies by it has it written out in the precision of the input, forward and
again backward, and nothing of that is kept. Rounding is done by bitsandbytes, an optional dependency, always from
float32 and in blocks that end with a row: a rank's part of a matrix is rounded as it is in the whole one.
"""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

BLOCK = 64
"""Numbers that share a scale; the inputs of a layer on a rank must be a multiple of it."""
BYTES_PER_NUMBER = 0.5 + 4 / BLOCK
"""Half a byte, and a float32 scale a block."""


def why_not(device_type: str) -> tuple[str, str] | None:
    """Why nothing can be rounded to 4 bits on this kind of torch device, and what to do; None where it can."""
    if find_spec("bitsandbytes") is None:
        return "needs bitsandbytes, which is not installed", "pip install 'loong-llm[qlora]'"
    try:
        served = _bitsandbytes().supported_torch_devices
    except (ImportError, OSError, RuntimeError) as error:
        return f"needs bitsandbytes, which cannot be imported here: {error}", "install it again"
    if device_type not in served:
        return (
            f"needs bitsandbytes, which does not compute on {device_type}, only on {', '.join(sorted(served))}",
            "leave it out",
        )
    return None


class FourBitWeight(nn.Module):
    """A matrix in NF4, in the place of a linear layer's `weight`; no parameter, so no engine sees it.

    Args:
        weight: `[out, in]` of float32 or narrower, `in` a multiple of 64, on a device that bitsandbytes serves.

    Attributes:
        shape, dtype: of the matrix it was made of.
    """

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.shape, self.dtype = weight.shape, weight.dtype
        packed, state = _bitsandbytes().functional.quantize_4bit(
            weight.detach().float(), blocksize=BLOCK, quant_type="nf4"
        )
        self.register_buffer("packed", packed, persistent=False)
        self.register_buffer("scales", state.absmax, persistent=False)
        self.packed: Tensor
        self.scales: Tensor

    @property
    def device(self) -> torch.device:
        """Where the numbers are."""
        return self.packed.device

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        return self.packed.nbytes + self.scales.nbytes

    def whole(self, dtype: torch.dtype | None = None) -> Tensor:
        """The matrix written out, `[out, in]`, in its own dtype or another."""
        dtype = dtype or self.dtype
        library = _bitsandbytes().functional
        state = library.QuantState(
            absmax=self.scales,
            shape=self.shape,
            code=library.get_4bit_type("nf4", device=self.device),
            blocksize=BLOCK,
            quant_type="nf4",
            dtype=dtype if dtype in (torch.bfloat16, torch.float16) else torch.float32,
        )
        written: Tensor = library.dequantize_4bit(self.packed, state)
        return written.to(dtype)

    def linear(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x W' + b` in the precision of `x`, `[tokens, in]`; there is a gradient for `x` and `bias` only."""
        y = _FourBitProduct.apply(x, self)
        return y if bias is None else y + bias  # type: ignore[no-any-return]


def matrix_of(linear: nn.Module, dtype: torch.dtype) -> Tensor:
    """A linear layer's matrix in `dtype`, whether it is in 4 bits or not."""
    weight: Any = linear.weight
    return weight.whole(dtype) if isinstance(weight, FourBitWeight) else weight.to(dtype)


class _FourBitProduct(Function):
    """`x W'` with a frozen `W` that is written out for the product and let go."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: FourBitWeight) -> Tensor:
        ctx.weight = weight
        return F.linear(x, weight.whole(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return grads[0] @ ctx.weight.whole(grads[0].dtype), None


@cache
def _bitsandbytes() -> Any:
    """The library, imported without its word on an accelerated product that is not asked for."""
    logger = logging.getLogger("bitsandbytes.backends.cpu.ops")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        import bitsandbytes
    finally:
        logger.setLevel(level)
    return bitsandbytes
