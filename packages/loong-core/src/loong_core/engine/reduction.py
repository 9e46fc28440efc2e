"""The loss of a global batch: summed over a rank's microbatches, then over ranks, equal on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from loong_core.engine.base import LossTerms, StepLoss
from loong_core.parallel.context import ParallelContext

_FIXED = 3


class LossTally:
    """The loss of one step, summed on the device over this rank's microbatches."""

    def __init__(self, device: torch.device) -> None:
        self.loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self.tokens = torch.zeros((), dtype=torch.float64, device=device)
        self.microbatches = 0
        self.metrics: dict[str, Tensor] = {}

    def add(self, terms: LossTerms) -> None:
        """Add a microbatch's terms."""
        self.loss_sum += terms.loss_sum.detach()
        self.tokens += terms.tokens
        self.microbatches += 1
        for name, value in terms.metrics.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + value.detach().to(self.loss_sum)

    def vector(self) -> Tensor:
        """Sums to be added over ranks, float64: loss, tokens, microbatches, then the metrics in order of name."""
        counted = torch.full_like(self.loss_sum, self.microbatches)
        return torch.stack(
            [self.loss_sum, self.tokens, counted, *(self.metrics[name] for name in sorted(self.metrics))]
        )


def global_loss(sums: Tensor, names: Sequence[str], context: ParallelContext) -> tuple[StepLoss, Tensor]:
    """Add the ranks' sums and divide.

    Args:
        sums: float64 `[3 + metrics]`: loss, tokens, microbatches, and one sum a metric over microbatches. Zeros on
            pipeline ranks without the loss.
        names: of the metrics, in order; known on the last pipeline rank only.
        context: the component's axes.

    Returns:
        the mean loss (0 where no token is trained on) and metrics, and the number of tokens as a scalar on the device.
    """
    if context.data_context.size > 1:
        dist.all_reduce(sums, group=context.data_context.group)
    if context.pipeline.size > 1:
        sums, names = _from_last_stage(sums, names, context)
    loss, tokens, microbatches, *metrics = sums.tolist()
    values = {name: value / max(microbatches, 1) for name, value in zip(names, metrics, strict=True)}
    return StepLoss(loss / max(tokens, 1), round(tokens), values), sums[1]


def _from_last_stage(sums: Tensor, names: Sequence[str], context: ParallelContext) -> tuple[Tensor, Sequence[str]]:
    """What the last pipeline rank has: the sums, and (only where there are metrics) their names."""
    group = context.pipeline.group
    assert group is not None
    last = dist.get_global_rank(group, context.pipeline.size - 1)
    count = torch.tensor([len(names)], device=sums.device)
    dist.broadcast(count, src=last, group=group)
    if int(count) and not context.is_last_stage:
        sums = sums.new_zeros(_FIXED + int(count))
    dist.broadcast(sums, src=last, group=group)
    if int(count):
        told = [list(names)]
        dist.broadcast_object_list(told, src=last, group=group, device=sums.device)
        names = told[0]
    return sums, names
