"""Kunlun's runtime: whether it is here, and what is missing if not.

XPyTorch, Kunlun's torch, is no separate device type. Its package `torch_xmlir`, once imported, answers torch's CUDA
calls: `torch.cuda` counts XPUs, tensors say `cuda`, and the backend `nccl` is BKCL, Kunlun's communication library. It
must be imported before the first CUDA call.
"""

from __future__ import annotations

import importlib
import importlib.util

import torch

PACKAGE = "torch_xmlir"


def is_installed() -> bool:
    """Whether the runtime's package can be found; imports nothing."""
    return importlib.util.find_spec(PACKAGE) is not None


def why_unusable() -> str | None:
    """Load the runtime; what is missing for its use and how to get it, None if nothing is."""
    if not is_installed():
        return (
            f"Kunlun's runtime is not installed (there is no module {PACKAGE}); it comes with XPyTorch, Kunlun's "
            "build of torch, from the vendor"
        )
    try:
        importlib.import_module(PACKAGE)
    except Exception as error:
        return (
            f"{PACKAGE} is installed but does not load ({type(error).__name__}: {error}); "
            f"`python -m {PACKAGE} --doctor` examines the installation"
        )
    if torch.cuda.device_count() == 0:
        return (
            f"{PACKAGE} is loaded but shows no XPU; check that /dev/xpu0 and /dev/xpuctrl exist here (a container must "
            "be given them) and that XPU_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES hide none"
        )
    return None
