"""One folder an op: its reference, its implementations, and the public function with its documented meaning."""

from loong_kernels.ops import (
    adamw,
    add_rms_norm,
    attention,
    embedding,
    expert_permutation,
    grouped_linear,
    grouped_scaled_product,
    grouped_weight_gradient,
    linear,
    linear_cross_entropy,
    packed_attention,
    partial_attention,
    qk_norm_rotary,
    quantise,
    quantise_swiglu,
    rms_norm,
    rotary,
    scaled_product,
    swiglu,
)
from loong_kernels.providers import transformer_engine
from loong_kernels.registry import REGISTRY

transformer_engine.register(REGISTRY)

__all__ = [
    "adamw",
    "add_rms_norm",
    "attention",
    "embedding",
    "expert_permutation",
    "grouped_linear",
    "grouped_scaled_product",
    "grouped_weight_gradient",
    "linear",
    "linear_cross_entropy",
    "packed_attention",
    "partial_attention",
    "qk_norm_rotary",
    "quantise",
    "quantise_swiglu",
    "rms_norm",
    "rotary",
    "scaled_product",
    "swiglu",
]
