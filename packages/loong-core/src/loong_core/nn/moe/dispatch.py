"""Bringing rows to the ranks that hold their experts, and the results back.

Rows travel to the right expert rank by an all-to-all. Expert-tensor ranks, each of which holds a part of every matrix
of its experts, then pool their rows; their results are summands, and each rank takes the sums of its own rows back.
How many rows go where is known to the device alone, so the host waits for it once a layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from loong_core.nn.moe.exchange import exchange_rows, gather_rows, sum_to_rows
from loong_core.parallel.context import ParallelContext
from loong_kernels import ExpertOrder, order_by_expert, permute_to_experts


def at_experts(
    rows: Tensor, offsets: Tensor, experts: Callable[[Tensor, Tensor], Tensor], context: ParallelContext
) -> Tensor:
    """Apply the experts to rows wherever they are.

    Args:
        rows: `[rows, hidden]` of this rank, sorted by expert.
        offsets: `[num_experts]` int32, where the rows of each expert end.
        experts: this rank's: rows sorted by local expert and `[local_experts]` offsets to results.
        context: the axes `expert` and `expert_tensor` share the experts.

    Returns:
        `[rows, hidden]`, each row's result.
    """
    if context.expert.size == context.expert_tensor.size == 1:
        return experts(rows, offsets)
    plan = _plan(offsets, context)
    arrived = exchange_rows(rows, context.expert, plan.sent, plan.received)
    arrived = gather_rows(arrived, context.expert_tensor, plan.pooled)
    results = experts(permute_to_experts(arrived, plan.order), plan.order.offsets)
    results = permute_to_experts(results, _inverse(plan.order))
    results = sum_to_rows(results, context.expert_tensor, plan.pooled)
    return exchange_rows(results, context.expert, plan.received, plan.sent)


@dataclass(frozen=True)
class _Plan:
    """Who sends how many rows to whom.

    Attributes:
        sent: rows of this rank for each expert rank.
        received: rows from each expert rank for this one.
        pooled: rows that each expert-tensor rank received.
        order: of the pooled rows, by local expert.
    """

    sent: list[int]
    received: list[int]
    pooled: list[int]
    order: ExpertOrder


@torch.no_grad()
def _plan(offsets: Tensor, context: ParallelContext) -> _Plan:
    expert, tensor = context.expert, context.expert_tensor
    counts = offsets.diff(prepend=offsets.new_zeros(1)).unflatten(0, (expert.size, -1))  # [expert ranks, local experts]
    incoming = counts
    if expert.size > 1:
        incoming = torch.empty_like(counts)
        dist.all_to_all_single(incoming, counts.contiguous(), group=expert.group)
    everyones = incoming[None]  # [expert-tensor ranks, expert ranks that send, local experts]
    if tensor.size > 1:
        everyones = incoming.new_empty(tensor.size, *incoming.shape)
        dist.all_gather_into_tensor(everyones.flatten(0, 1), incoming, group=tensor.group)
    host = torch.cat([counts.sum(1), everyones.sum(2).flatten()]).tolist()
    sent, arrivals = host[: expert.size], host[expert.size :]
    runs = [arrivals[start : start + expert.size] for start in range(0, len(arrivals), expert.size)]
    pooled = [sum(run) for run in runs]
    numbers = torch.arange(counts.shape[1], device=offsets.device).expand(everyones.shape)
    expert_of_row = numbers.flatten().repeat_interleave(everyones.flatten(), output_size=sum(pooled))
    return _Plan(sent, runs[tensor.rank], pooled, order_by_expert(expert_of_row[:, None], counts.shape[1]))


def _inverse(order: ExpertOrder) -> ExpertOrder:
    """The order that undoes one in which each token has one row."""
    return ExpertOrder(
        order.offsets, order.counts, order.row_of_choice[:, 0], order.choice_of_row[:, None], has_gaps=False
    )
