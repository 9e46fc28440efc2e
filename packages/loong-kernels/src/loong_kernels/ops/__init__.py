"""One folder an op: its reference, its implementations, and the public function with its documented meaning."""

from loong_kernels.ops import (
    adamw,
    add_rms_norm,
    attention,
    embedding,
    expert_permutation,
    grouped_linear,
    linear,
    linear_cross_entropy,
    packed_attention,
    partial_attention,
    qk_norm_rotary,
    rms_norm,
    rotary,
    swiglu,
)

__all__ = [
    "adamw",
    "add_rms_norm",
    "attention",
    "embedding",
    "expert_permutation",
    "grouped_linear",
    "linear",
    "linear_cross_entropy",
    "packed_attention",
    "partial_attention",
    "qk_norm_rotary",
    "rms_norm",
    "rotary",
    "swiglu",
]
