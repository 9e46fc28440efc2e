"""Permuting and combining by indexing, with autograd's own gradients: what every implementation must equal."""

from __future__ import annotations

import torch
from torch import Tensor

from loong_kernels.ops.expert_permutation.order import ExpertOrder


def permute_to_experts_reference(x: Tensor, order: ExpertOrder) -> Tensor:
    """`x[token of each row]`, zero for rows without one."""
    exact = torch.promote_types(x.dtype, torch.float32)
    token = order.choice_of_row.clamp(min=0) // order.row_of_choice.shape[1]
    rows = x.to(exact)[token]  # in the wider type, so that the gradient is added up there
    return torch.where(order.choice_of_row[:, None] < 0, 0, rows).to(x.dtype)


def combine_from_experts_reference(y: Tensor, weights: Tensor, order: ExpertOrder) -> Tensor:
    """`sum over places of weight * y[row of the choice]`, dropped choices left out."""
    exact = torch.promote_types(y.dtype, torch.float32)
    dropped = order.row_of_choice[..., None] < 0
    results = torch.where(dropped, 0, y.to(exact)[order.row_of_choice.clamp(min=0)])  # [tokens, top_k, hidden]
    return (results * weights.to(exact)[..., None]).sum(1).to(y.dtype)
