"""Ops for training: a PyTorch reference for each, and faster implementations behind one registry."""

from loong_kernels.ops.adamw import adamw
from loong_kernels.ops.add_rms_norm import add_rms_norm
from loong_kernels.ops.attention import attention
from loong_kernels.ops.embedding import embedding
from loong_kernels.ops.expert_permutation import (
    ExpertOrder,
    combine_from_experts,
    order_by_expert,
    permute_to_experts,
)
from loong_kernels.ops.gated_add import gated_add
from loong_kernels.ops.grouped_linear import grouped_linear
from loong_kernels.ops.linear import linear
from loong_kernels.ops.linear_cross_entropy import linear_cross_entropy
from loong_kernels.ops.modulated_norm import modulated_norm
from loong_kernels.ops.packed_attention import packed_attention
from loong_kernels.ops.partial_attention import SequencePairs, partial_attention, partial_attention_backward
from loong_kernels.ops.qk_norm_rotary import qk_norm_rotary
from loong_kernels.ops.rms_norm import rms_norm
from loong_kernels.ops.rotary import rotary
from loong_kernels.ops.swiglu import swiglu
from loong_kernels.ops.wide_norm_rotary import wide_norm_rotary

__all__ = [
    "ExpertOrder",
    "SequencePairs",
    "adamw",
    "add_rms_norm",
    "attention",
    "combine_from_experts",
    "embedding",
    "gated_add",
    "grouped_linear",
    "linear",
    "linear_cross_entropy",
    "modulated_norm",
    "order_by_expert",
    "packed_attention",
    "partial_attention",
    "partial_attention_backward",
    "permute_to_experts",
    "qk_norm_rotary",
    "rms_norm",
    "rotary",
    "swiglu",
    "wide_norm_rotary",
]
