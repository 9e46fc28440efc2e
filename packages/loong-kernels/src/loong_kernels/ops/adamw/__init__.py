"""One AdamW update (Loshchilov and Hutter 2019, https://arxiv.org/abs/1711.05101) of a tensor, in place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.adamw.reference import adamw_reference
from loong_kernels.ops.adamw.settings import AdamWSettings
from loong_kernels.ops.adamw.torch_fused import adamw_torch_fused
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

OP = REGISTRY.define("adamw", "one AdamW update in place", "loong_kernels.ops.adamw.samples:samples")


class AdamWCase(NamedTuple):
    """Shape class of `adamw`."""

    device: str
    dtype: torch.dtype
    gradient_dtype: torch.dtype
    moment_dtype: torch.dtype


@torch.no_grad()
def adamw(
    weight: Tensor,
    gradient: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    gradient_scale: float = 1.0,
    rounded: Tensor | None = None,
) -> None:
    """Update `weight` and both moments, in place.

    With `g = gradient_scale * gradient`: `m = β1 m + (1 - β1) g`, `v = β2 v + (1 - β2) g²`, and
    `w = (1 - lr weight_decay) w - lr / (1 - β1^step) m / (√(v / (1 - β2^step)) + eps)`.

    Args:
        weight: any shape, contiguous, as all tensors here.
        gradient: shaped as `weight`; it is left as it is.
        exp_avg: first moment `m`.
        exp_avg_sq: second moment `v`.
        step: number of this update, from 1.
        lr: learning rate.
        betas: decay rates of the moments.
        eps: added to the root of the second moment.
        weight_decay: decoupled decay, times the learning rate.
        gradient_scale: what the gradient is multiplied by (for a mean over tokens, for clipping).
        rounded: gets the new weight in its own dtype, as the model uses it; None: nothing does.

    Raises:
        ValueError: tensors differ in shape or are not contiguous; the message says which.
    """
    tensors = {"gradient": gradient, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq, "rounded": rounded, "weight": weight}
    for name, tensor in tensors.items():
        if tensor is not None and (tensor.shape != weight.shape or not tensor.is_contiguous()):
            raise ValueError(
                f"adamw wants contiguous tensors of one shape; {name} is {list(tensor.shape)} with strides "
                f"{list(tensor.stride())}, weight {list(weight.shape)}"
            )
    case = AdamWCase(weight.device.type, weight.dtype, gradient.dtype, exp_avg.dtype)
    settings = AdamWSettings(step, lr, betas, eps, weight_decay, gradient_scale)
    OP.serve(case)(weight, gradient, exp_avg, exp_avg_sq, rounded, settings)


def _fused_supports(case: AdamWCase) -> str | None:
    if {case.gradient_dtype, case.moment_dtype} != {case.dtype}:
        return "takes weight, gradient and moments in one dtype only"
    return None if case.device in ("cpu", "cuda") else f"torch has no fused AdamW for {case.device}"


def _triton_supports(case: AdamWCase) -> str | None:
    return unsupported_dtype(case.dtype, case.gradient_dtype, case.moment_dtype)


REGISTRY.register(Implementation("reference", OP.name, ("*",), adamw_reference))
REGISTRY.register(
    Implementation("torch_fused", OP.name, ("*",), adamw_torch_fused, supports=_fused_supports, priority=10)
)
register_triton(REGISTRY, OP.name, "loong_kernels.ops.adamw.triton_kernels:adamw_triton", _triton_supports)
