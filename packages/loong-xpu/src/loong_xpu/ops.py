"""Which implementations of ops an XPU gets: torch's own operations, which Kunlun's runtime serves.

To torch, tensors on an XPU are CUDA tensors, so implementations written for NVIDIA GPUs would be asked. Toolchains that
cannot run on an XPU are excluded, wherever their kernels are registered, now or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from loong_xpu import runtime

if TYPE_CHECKING:
    from loong_kernels.registry import Registry

EXCLUDED: dict[str, str] = {
    "triton": "Triton compiles for NVIDIA GPUs, and this is a Kunlun XPU",
    "tilelang": "TileLang compiles for NVIDIA GPUs, and this is a Kunlun XPU",
    "transformer_engine": "TransformerEngine is made of NVIDIA kernels, and this is a Kunlun XPU",
    "flash": "torch's flash kernels are NVIDIA's; on a Kunlun XPU scaled_dot_product_attention runs Kunlun's own",
    "cudnn": "cuDNN attention is NVIDIA's; on a Kunlun XPU scaled_dot_product_attention runs Kunlun's own",
}
"""Toolchains, as implementations name them in `uses`, and why an XPU does without."""


def register(registry: Registry) -> None:
    """Entry point of the group `loong.kernels`. Without Kunlun's runtime it changes nothing."""
    if runtime.why_unusable() is not None:
        return
    for toolchain, reason in EXCLUDED.items():
        registry.exclude(toolchain, reason)
