"""SwiGLU in plain PyTorch: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def swiglu_reference(gate_up: Tensor) -> Tensor:
    """`silu(gate) * up` in float32 (float64 for float64), rounded once, at the end."""
    gate, up = gate_up.to(torch.promote_types(gate_up.dtype, torch.float32)).chunk(2, dim=-1)
    return (F.silu(gate) * up).to(gate_up.dtype)
