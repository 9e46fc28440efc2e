"""Whether Triton kernels can run here: on a CUDA GPU, or on CPU in Triton's interpreter.

Triton itself is imported only when an implementation that needs it may serve.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from loong_kernels.registry import Implementation, Registry

FLOAT_DTYPES = frozenset({torch.float32, torch.bfloat16, torch.float16})


def register_triton(
    registry: Registry,
    op: str,
    fn: str,
    supports: Callable[[Any], str | None],
    *,
    name: str = "triton",
    priority: int | None = 100,
) -> None:
    """Register a Triton implementation twice: under its name on a GPU, and as `..._interpreted` on CPU, by name only.

    Args:
        registry: where to.
        op: name of the op.
        fn: `"module:function"`, imported when it may serve.
        supports: why a case cannot be served, or None.
        name: of the implementation.
        priority: on a GPU.
    """
    registry.register(
        Implementation(
            name=name,
            op=op,
            devices=("cuda",),
            fn=fn,
            priority=priority,
            available=missing_for_gpu,
            supports=supports,
            needs="the package triton and an NVIDIA GPU of compute capability 8.0 or later",
            uses=frozenset({"triton"}),
        )
    )
    registry.register(
        Implementation(
            name=f"{name}_interpreted",
            op=op,
            devices=("cpu",),
            fn=fn,
            priority=None,
            available=missing_for_interpreter,
            supports=supports,
            needs="the package triton and TRITON_INTERPRET=1 in the environment; slow, for tests",
            uses=frozenset({"triton"}),
        )
    )


def missing_for_gpu() -> str | None:
    """Why Triton kernels cannot run on this machine's GPU, or None."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    capability = torch.cuda.get_device_capability()
    return None if capability >= (8, 0) else f"the GPU's compute capability is {capability}, below (8, 0)"


def missing_for_interpreter() -> str | None:
    """Why Triton kernels cannot run on this machine's CPU, or None."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    from triton import knobs
    from triton.language import standard
    from triton.runtime import JITFunction

    if not knobs.runtime.interpret:
        return "TRITON_INTERPRET=1 is not set"
    if isinstance(standard.sum, JITFunction):
        return "TRITON_INTERPRET=1 was set only after triton was imported"
    return None


def unsupported_dtype(*dtypes: torch.dtype) -> str | None:
    """Why kernels that compute in float32 do not take these dtypes, or None."""
    wrong = [str(dtype).removeprefix("torch.") for dtype in dtypes if dtype not in FLOAT_DTYPES]
    return f"computes in float32, so {wrong[0]} is left to others" if wrong else None


def without_tensor_copies(device: str) -> str | None:
    """Why kernels that use the tensor copy engine of compute capability 9.0 or 8-bit numbers do not run, or None."""
    if device != "cuda" or torch.cuda.get_device_capability() >= (9, 0):
        return None
    return f"the GPU's compute capability is {torch.cuda.get_device_capability()}, below (9, 0)"
