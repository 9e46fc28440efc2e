"""How an engine computes and updates: precision, AdamW, clipping, and what communication overlaps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

Precision = Literal["fp32", "bf16", "fp64"]
Sharding = Literal["everything", "optimizer"]
Moments = Literal["fp32", "bf16"]


def decays_matrices(name: str, parameter: nn.Parameter) -> bool:
    """The usual decay rule by parameter kind: matrices and tables decay, norms and biases do not."""
    return parameter.ndim >= 2


def same_rate(name: str, parameter: nn.Parameter) -> float:
    """One learning rate for all parameters."""
    return 1.0


@dataclass(frozen=True)
class EmaSettings:
    """An exponential moving average of the weights, of step `n`: `average += (1 - decay_n) (weight - average)`.

    `decay_n = min(decay, (1 + n) / (10 + n))`, so that the average forgets where it began.

    Attributes:
        decay: share of the average that a step leaves.
    """

    decay: float = 0.999

    def decay_at(self, updates: int) -> float:
        """Of the `updates`-th step, counted from 1."""
        return min(self.decay, (1 + updates) / (10 + updates))


@dataclass(frozen=True)
class EngineSettings:
    """What both engines take.

    Attributes:
        precision: `bf16` computes in bfloat16 with float32 main weights and gradients; `fp32` is float32
            throughout; `fp64` is for comparing losses and gradients only: there is then no optimizer.
        weight_decay: AdamW's decoupled decay, multiplied by the learning rate.
        betas: decay rates of AdamW's two moments.
        eps: added to the root of the second moment.
        moments: what AdamW's two moments are kept in between steps; a step computes in float32.
        clip_grad: Euclidean norm that gradients are scaled down to; 0 never clips.
        decays: whether a parameter (module name, parameter) decays.
        lr_scale: what a parameter's (module name, parameter) learning rate is multiplied by; 0 leaves it as it is.
        overlap_grad_reduce: reduce gradients over data ranks while backward goes on.
        overlap_param_gather: gather updated weights while the next forward goes on.
        bucket_size: elements communicated at once when overlapping; the engine's own choice where None.
        ema: engine fsdp: the weights' moving average, kept beside them, saved, and used in evaluation; None: no such.
        sharding: engine fsdp: `everything` divides weights, gradients and the optimizer's state among the ranks of
            `shard`; `optimizer` keeps weights whole and adds up whole gradients over a step's microbatches, and divides
            the optimizer's state only (ZeRO-1): less communication for more memory.
        compile_layers: engine fsdp: whether each kind of layer is compiled (`torch.compile`).
    """

    precision: Precision = "fp32"
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    moments: Moments = "fp32"
    clip_grad: float = 1.0
    decays: Callable[[str, nn.Parameter], bool] = decays_matrices
    lr_scale: Callable[[str, nn.Parameter], float] = same_rate
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    bucket_size: int | None = None
    ema: EmaSettings | None = None
    sharding: Sharding = "everything"
    compile_layers: bool = False

    @property
    def dtype(self) -> torch.dtype:
        """What activations and the weights used in forward are in."""
        return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}[self.precision]

    @property
    def moments_dtype(self) -> torch.dtype:
        """What AdamW's moments are kept in."""
        return torch.bfloat16 if self.moments == "bf16" else torch.float32

    @property
    def has_optimizer(self) -> bool:
        """Whether steps can be applied."""
        return self.precision != "fp64"
