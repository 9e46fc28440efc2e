"""The distributed optimizer's state, parameter by parameter.

Each data rank owns a range of each gradient bucket, hence a flat range of some parameters: for those it keeps float32
main weights and AdamW's moments. Here such a range is found, with its tensors, for any parameter of the rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

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
        inner: the torch optimizer that updates them.
    """

    parameter: nn.Parameter
    start: int
    stop: int
    main: Tensor
    inner: torch.optim.Optimizer

    def tensors(self) -> dict[str, Tensor]:
        """State by kind, each `[stop - start]`: `weight` and the moments."""
        state = self.inner.state[self.main]
        return {"weight": self.main.detach()} | {name: state[name] for name in MOMENTS}

    @property
    def gradient(self) -> Tensor:
        """The accumulated gradient of the owned elements, `[stop - start]`."""
        return self.parameter.main_grad.view(-1)[self.start : self.stop]  # type: ignore[attr-defined]


def chained(optimizer: MegatronOptimizer) -> list[Any]:
    """The distributed optimizers in one that `get_megatron_optimizer` made: dense parameters', experts'."""
    return [each for each in optimizer.chained_optimizers if not each.is_stub_optimizer]  # type: ignore[attr-defined]


def owned_ranges(optimizer: MegatronOptimizer) -> Iterator[OwnedRange]:
    """Everything this rank owns."""
    for each in chained(optimizer):
        for parameter, (group, order) in each.model_param_group_index_map.items():
            owned = each._get_model_param_range_map(parameter)["param"]
            main = each.optimizer.param_groups[group]["params"][order]
            yield OwnedRange(parameter, owned.start, owned.end, main, each.optimizer)


def prepare(optimizer: MegatronOptimizer) -> None:
    """Allocate the moments now rather than at the first step, so that what does not fit fails at the start."""
    for each in chained(optimizer):
        each.init_state_fn(each.optimizer, each.config)
        if isinstance(each.optimizer, torch.optim.AdamW):
            for group in each.optimizer.param_groups:
                group["fused"] = True
    set_updates(optimizer, 0)


def set_updates(optimizer: MegatronOptimizer, updates: int) -> None:
    """Set how many updates the moments have seen (Adam's bias correction)."""
    for each in chained(optimizer):
        for group in each.optimizer.param_groups:
            if not isinstance(each.optimizer, torch.optim.AdamW):
                group["step"] = updates  # fused optimizers of TransformerEngine and Apex count by group
                continue
            for main in group["params"]:
                step = torch.tensor(float(updates), dtype=torch.float32, device=main.device)
                each.optimizer.state[main]["step"] = step


def set_rate(optimizer: MegatronOptimizer, lr: float, weight_decay: float) -> None:
    """Set the learning rate, and the decay of the groups that decay (`wd_mult`)."""
    for group in optimizer.param_groups:
        group["lr"] = lr
        group["weight_decay"] = weight_decay * group["wd_mult"]
