"""The order in which tokens lie before their experts, and how it is found by sorting."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ExpertOrder:
    """Which row each choice of an expert has, and which choice each row.

    A choice is numbered `token * top_k + place`.

    Attributes:
        offsets: `[experts]` int32, where each expert's rows end.
        counts: `[experts]` int64, how often each was chosen, what was dropped included.
        choice_of_row: `[rows]` int64; -1 for a row without a token.
        row_of_choice: `[tokens, top_k]` int64; -1 for a choice that was dropped.
        has_gaps: whether there may be any -1, that is, whether there is a capacity.
    """

    offsets: Tensor
    counts: Tensor
    choice_of_row: Tensor
    row_of_choice: Tensor
    has_gaps: bool


def order_by_expert_reference(
    choices: Tensor, experts: int, capacity: int | None, priority: Tensor | None
) -> ExpertOrder:
    """A stable sort of the choices by expert, after one by falling priority if there is one."""
    flat = choices.flatten()
    if priority is None:
        in_order = flat.argsort(stable=True)
    else:
        by_priority = priority.flatten().argsort(stable=True, descending=True)
        in_order = by_priority[flat[by_priority].argsort(stable=True)]
    sorted_experts = flat[in_order]
    numbers = torch.arange(experts, device=flat.device)
    ends = torch.searchsorted(sorted_experts, numbers, right=True)  # counts, without waiting as bincount does
    counts = ends.diff(prepend=ends.new_zeros(1))
    places = torch.arange(flat.numel(), device=flat.device)
    if capacity is None:
        row_of_choice = torch.empty_like(flat).index_copy_(0, in_order, places)
        return ExpertOrder(ends.to(torch.int32), counts, in_order, row_of_choice.view_as(choices), has_gaps=False)
    place_in_expert = places - (ends - counts)[sorted_experts]
    rows = torch.where(place_in_expert < capacity, sorted_experts * capacity + place_in_expert, -1)
    row_of_choice = torch.empty_like(flat).index_copy_(0, in_order, rows)
    # Dropped choices are written to a row past the last, which is cut off.
    choice_of_row = flat.new_full((experts * capacity + 1,), -1)
    choice_of_row.index_copy_(0, torch.where(rows < 0, experts * capacity, rows), in_order)
    offsets = (numbers + 1).to(torch.int32) * capacity
    return ExpertOrder(offsets, counts, choice_of_row[:-1], row_of_choice.view_as(choices), has_gaps=True)
