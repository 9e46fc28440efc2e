"""What torch's own attention kernels need of a machine."""

from __future__ import annotations

import torch

HALF_DTYPES = frozenset({torch.bfloat16, torch.float16})


def no_nvidia_gpu() -> str | None:
    """Why this machine has no NVIDIA GPU that torch's attention kernels run on, or None."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    capability = torch.cuda.get_device_capability()
    return None if capability >= (8, 0) else f"the GPU's compute capability is {capability}, below (8, 0)"


def no_cudnn() -> str | None:
    """Why cuDNN's attention cannot run on this machine, or None."""
    return no_nvidia_gpu() or (None if torch.backends.cudnn.is_available() else "torch was built without cuDNN")


def widest_cudnn_head() -> int:
    """The largest head_dim that cuDNN's attention takes forward and backward on this machine's GPU."""
    return 256 if torch.cuda.get_device_capability() >= (9, 0) else 128
