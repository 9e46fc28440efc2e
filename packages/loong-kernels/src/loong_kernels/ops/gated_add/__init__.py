"""A branch's output added to the residual stream through a gate that differs from run to run of tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.gated_add.reference import gated_add_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define(
    "gated_add",
    "a branch added to the stream times the gate of the run of tokens",
    "loong_kernels.ops.gated_add.samples:samples",
)


class GatedAddCase(NamedTuple):
    """Shape class of `gated_add`."""

    device: str
    dtype: torch.dtype
    branch_dtype: torch.dtype
    gate_dtype: torch.dtype
    hidden: int


def gated_add(stream: Tensor, branch: Tensor, gate: Tensor, bounds: Tensor) -> Tensor:
    """`stream + branch * gate`, the gate being that of the token's run.

    Args:
        stream: `[tokens, hidden]`.
        branch: `[tokens, hidden]`.
        gate: `[runs, hidden]`, best in float32.
        bounds: `[runs + 1]` int32 on the tensors' device: 0, each run's end, the last being `tokens`.

    Returns:
        `[tokens, hidden]` in `stream.dtype`; the arithmetic is float32 (float64 for float64), rounded once at the end.
    """
    case = GatedAddCase(stream.device.type, stream.dtype, branch.dtype, gate.dtype, stream.shape[-1])
    return OP.serve(case)(stream, branch, gate, bounds)


LARGEST_HIDDEN = 16384
"""A Triton program holds whole vectors in registers."""


def _triton_supports(case: GatedAddCase) -> str | None:
    if case.hidden > LARGEST_HIDDEN:
        return f"a vector of {case.hidden} does not fit a program's registers (at most {LARGEST_HIDDEN})"
    return unsupported_dtype(case.dtype, case.branch_dtype, case.gate_dtype)


REGISTRY.register(Implementation("reference", OP.name, ("*",), gated_add_reference))
register_triton(REGISTRY, OP.name, "loong_kernels.ops.gated_add.triton_kernels:gated_add_triton", _triton_supports)
