"""The distributed optimizer's state, parameter by parameter.

Each data rank owns a range of each gradient bucket, hence a flat range of some parameters: for those it keeps float32
main weights and AdamW's moments. Here such a range is found, with its tensors, for any parameter of the rank, and
updated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from loong_core.engine.settings import EngineSettings
from loong_kernels import adamw

if TYPE_CHECKING:
    from megatron.core.optimizer import MegatronOptimizer

MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class OwnedRange:
    """What this data rank owns of one parameter.

    Attributes:
        parameter: the whole local parameter.
        start, stop: the elements owned, counted in the flattened parameter.
        main: their float32 main weights, `[stop - start]`; for a float32 model a view of the parameter itself.
        inner: the optimizer that holds their moments.
        decay: what the weight decay is multiplied by.
    """

    parameter: nn.Parameter
    start: int
    stop: int
    main: Tensor
    inner: torch.optim.Optimizer
    decay: float

    def tensors(self) -> dict[str, Tensor]:
        """State by kind, each `[stop - start]`: `weight` and the moments."""
        state = self.inner.state[self.main]
        return {"weight": self.main.detach()} | {name: state[name] for name in MOMENTS}

    @property
    def gradient(self) -> Tensor:
        """The accumulated gradient of the owned elements, `[stop - start]`."""
        return self.parameter.main_grad.view(-1)[self.start : self.stop]  # type: ignore[attr-defined]

    @property
    def used(self) -> Tensor:
        """The owned elements of the weight used in forward, `[stop - start]`."""
        return self.parameter.detach().view(-1)[self.start : self.stop]


def chained(optimizer: MegatronOptimizer) -> list[Any]:
    """The distributed optimizers in one that `get_megatron_optimizer` made: dense parameters', experts'."""
    return [each for each in optimizer.chained_optimizers if not each.is_stub_optimizer]  # type: ignore[attr-defined]


def owned_ranges(optimizer: MegatronOptimizer) -> Iterator[OwnedRange]:
    """Everything this rank owns."""
    for each in chained(optimizer):
        for parameter, (group, order) in each.model_param_group_index_map.items():
            owned = each._get_model_param_range_map(parameter)["param"]
            settings = each.optimizer.param_groups[group]
            main = settings["params"][order]
            yield OwnedRange(parameter, owned.start, owned.end, main, each.optimizer, settings["wd_mult"])


def prepare(optimizer: MegatronOptimizer, dtype: torch.dtype) -> None:
    """Allocate the moments, in `dtype`, now rather than at the first step: what does not fit fails at the start."""
    for owned in owned_ranges(optimizer):
        owned.inner.state[owned.main] = {name: torch.zeros_like(owned.main, dtype=dtype) for name in MOMENTS}


def gradient_norm(optimizer: MegatronOptimizer, device: torch.device) -> Tensor:
    """Euclidean norm of the reduced gradients over all ranks, a float32 scalar on the device, which is not waited for.

    What several ranks hold counts once, by the parameters' attributes that megatron-core reads.
    """
    square = torch.zeros((), dtype=torch.float32, device=device)
    for each in chained(optimizer):
        each.prepare_grads()
        gradients = each.get_grads_for_grad_norm()
        own = torch.zeros_like(square)
        if gradients:
            own = get_total_norm(gradients).square()
        dist.all_reduce(own, group=each.get_grad_stats_parallel_group())
        square += own
    return square.sqrt()


@torch.no_grad()
def update(
    optimizer: MegatronOptimizer,
    step: int,
    lr: float,
    settings: EngineSettings,
    gradient_scale: float,
    lr_scales: Mapping[int, float],
) -> None:
    """Take AdamW step number `step` with the reduced gradients times `gradient_scale`.

    `lr` is multiplied by a parameter's entry of `lr_scales` (by its `id`), if it has one.

    Main weights, moments and this rank's share of the weights used in forward are written in one pass; the shares are
    for the caller to gather.
    """
    for owned in owned_ranges(optimizer):
        state = owned.tensors()
        adamw(
            state["weight"],
            owned.gradient,
            state["exp_avg"],
            state["exp_avg_sq"],
            step=step,
            lr=lr * lr_scales.get(id(owned.parameter), 1.0),
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay * owned.decay,
            gradient_scale=gradient_scale,
            rounded=owned.used if owned.used.dtype != owned.main.dtype else None,
        )
