"""From sums on one rank to the loss of a global batch, equal on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from loong_core.engine.base import StepLoss
from loong_core.parallel.context import ParallelContext

_FIXED = 3


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
