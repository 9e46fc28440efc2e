"""SwiGLU (Shazeer 2020, https://arxiv.org/abs/2002.05202)."""

from __future__ import annotations

from torch import Tensor

from loong_kernels.ops.swiglu.reference import swiglu_reference


def swiglu(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` of a fused projection.

    Args:
        gate_up: `[tokens, 2 * intermediate]`: gate in the first half, up in the second.

    Returns:
        `[tokens, intermediate]` in `gate_up.dtype`; the arithmetic is float32 (float64 for float64).
    """
    return swiglu_reference(gate_up)
