"""One folder an op: its reference, its implementations, and the public function with its documented meaning."""

from loong_kernels.ops import (
    attention,
    expert_permutation,
    grouped_linear,
    linear_cross_entropy,
    packed_attention,
    partial_attention,
    rms_norm,
    rotary,
    swiglu,
)

__all__ = [
    "attention",
    "expert_permutation",
    "grouped_linear",
    "linear_cross_entropy",
    "packed_attention",
    "partial_attention",
    "rms_norm",
    "rotary",
    "swiglu",
]
