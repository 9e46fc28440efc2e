"""One step's time by kind of work, from torch's profiler: products, attention, element by element, optimizer, ..."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

KINDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("attention", ("attention", "flash", "fmha", "sdpa", "cudnn_generated")),
    ("optimizer", ("adam", "foreach", "multi_tensor", "lerp")),
    ("products", ("gemm", "cutlass", "nvjet", "cublas", "aten::mm", "aten::addmm", "aten::bmm", "wgmma", "splitk")),
    ("norm, modulation, rotary", ("_forward_kernel", "_backward_kernel", "layer_norm", "rms_norm", "rsqrt")),
    ("compiled element by element", ("triton_",)),
    ("communication", ("nccl", "gloo", "c10d")),
    ("copies", ("memcpy", "memset", "copy", "cat", "fill")),
)
"""Parts of names by kind; the first that fits counts, and what fits none is `element by element`."""


def kind_of(name: str) -> str:
    """The kind of a kernel, or of an operator on a CPU."""
    lower = name.lower()
    return next((kind for kind, parts in KINDS if any(part in lower for part in parts)), "element by element")


def time_by_kind(step: Callable[[], Any], device: str) -> dict[str, float]:
    """Milliseconds of one call of `step` by kind, on the device: kernels' own time, or on a CPU that of operators."""
    activity = ProfilerActivity.CPU if device == "cpu" else ProfilerActivity.CUDA
    with profile(activities=[activity], acc_events=True) as found:
        step()
        if device != "cpu":
            torch.cuda.synchronize()
    spent: defaultdict[str, float] = defaultdict(float)
    for event in found.key_averages():
        microseconds = event.self_cpu_time_total if device == "cpu" else event.self_device_time_total
        if microseconds:
            spent[kind_of(event.key)] += microseconds / 1000
    return {kind: round(total, 2) for kind, total in sorted(spent.items(), key=lambda item: -item[1])}
