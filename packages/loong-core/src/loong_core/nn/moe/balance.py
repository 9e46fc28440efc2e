"""The balance of the experts' load, once a step: the counts of all ranks, metrics of them, and the routers' biases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn

from loong_core.nn.moe.router import Router
from loong_core.parallel.context import Axis, ParallelContext


def routers(modules: Iterable[nn.Module]) -> Iterator[Router]:
    """Every router, in the order of the layers."""
    for module in modules:
        yield from (each for each in module.modules() if isinstance(each, Router))


@torch.no_grad()
def take_load(stages: Iterable[nn.Module], context: ParallelContext) -> dict[str, float]:
    """Add up what the routers of a model counted since the last call. Collective over the model's ranks.

    Each router's `load.counts` is then the whole step's, for `move_biases`; the next microbatch begins anew.

    Args:
        stages: this rank's part of one model. Every rank calls this, also one whose part has no router.
        context: the model's.

    Returns:
        on every rank: `router_aux_loss` and `router_z_loss` (not multiplied by their coefficients; 0 if not in use),
        `expert_load_max` and `expert_load_min` (the busiest and the idlest expert of a layer relative to an even load,
        the mean over layers), and `expert_dropped`, the fraction of choices that experts had no room for.
    """
    totals = torch.zeros(6, dtype=torch.float64, device=context.device)
    for router in routers(stages):
        totals += _sums(router, context)
    _add_up(totals, context.pipeline)
    aux, z, busiest, idlest, dropped, layers = totals.tolist()
    layers = max(layers, 1)
    return {
        "router_aux_loss": aux,
        "router_z_loss": z,
        "expert_load_max": busiest / layers,
        "expert_load_min": idlest / layers,
        "expert_dropped": dropped / layers,
    }


@torch.no_grad()
def move_biases(stages: Iterable[nn.Module]) -> None:
    """Lower the bias of experts chosen more often than the mean in the step just taken, raise the others'.

    Moves by `bias_rate` each, whatever the excess (arXiv:2408.15664). Needs no communication after `take_load`.
    """
    for router in routers(stages):
        if router.bias is not None and router.load.step_counts is not None:
            counts = router.load.step_counts
            router.bias.add_(torch.sign(counts.mean() - counts), alpha=router.config.bias_rate)


def _sums(router: Router, context: ParallelContext) -> Tensor:
    """One layer's numbers over all ranks that hold it: aux, z, busiest, idlest, dropped, and 1 for the layer."""
    load, experts = router.load, router.config.num_experts
    summed = torch.zeros(experts + 4, dtype=torch.float64, device=context.device)
    if load.counts is not None and load.dropped is not None and load.aux is not None and load.z is not None:
        summed[:experts] = load.counts
        summed[experts:] = torch.stack([load.dropped, load.aux, load.z, torch.full_like(load.z, load.microbatches)])
    _add_up(summed, context.tensor)
    _add_up(summed, context.data_context)
    load.end_step(summed[:experts])
    counts, (dropped, aux, z, microbatches) = summed[:experts], summed[experts:]
    # Ranks that share a microbatch each hold a part of its mean over tokens, and each count it once.
    microbatches = (microbatches / (context.tensor.size * context.context.size)).clamp(min=1)
    choices = counts.sum().clamp(min=1)
    even = choices / experts
    return torch.stack(
        [
            aux / microbatches,
            z / microbatches,
            counts.max() / even,
            counts.min() / even,
            dropped / choices,
            torch.ones_like(dropped),
        ]
    )


def _add_up(x: Tensor, axis: Axis) -> None:
    if axis.size > 1:
        dist.all_reduce(x, group=axis.group)
