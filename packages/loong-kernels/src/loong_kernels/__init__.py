"""Ops for training: a PyTorch reference for each, and faster implementations behind one registry."""

from loong_kernels.ops.attention import attention
from loong_kernels.ops.linear_cross_entropy import linear_cross_entropy
from loong_kernels.ops.packed_attention import packed_attention
from loong_kernels.ops.rms_norm import rms_norm
from loong_kernels.ops.rotary import rotary
from loong_kernels.ops.swiglu import swiglu

__all__ = ["attention", "linear_cross_entropy", "packed_attention", "rms_norm", "rotary", "swiglu"]
