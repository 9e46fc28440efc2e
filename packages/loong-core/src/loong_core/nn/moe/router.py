"""The router of a mixture of experts: which experts each token goes to, and with what weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.nn.moe.config import RouterConfig
from loong_core.nn.moe.load import RouterLoad
from loong_core.parallel.context import ParallelContext


@dataclass(frozen=True)
class Routing:
    """What a router decided for some tokens; floats are float32 (float64 in a float64 model).

    Attributes:
        logits: `[tokens, num_experts]`.
        scores: `[tokens, num_experts]`, softmax or sigmoid of the logits.
        experts: `[tokens, top_k]` int64, the chosen ones, best first.
        weights: `[tokens, top_k]`, by which the chosen experts' results are added up.
    """

    logits: Tensor
    scores: Tensor
    experts: Tensor
    weights: Tensor


class Router(nn.Module):
    """A linear layer whose outputs score the experts, in float32 whatever the model's precision.

    Tensor ranks route their own tokens, so the weight is whole on each and its gradient a partial sum.

    Attributes:
        bias: `[num_experts]` float32, added to scores for the choice alone; no gradient moves it. None without.
        load: what was counted since the last step.
    """

    def __init__(
        self, hidden_size: int, config: RouterConfig, context: ParallelContext, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.config = config
        self.weight = nn.Parameter(torch.empty(config.num_experts, hidden_size, device=context.device, dtype=dtype))
        self.weight.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]
        self.bias = None
        if config.bias:
            zeros = torch.zeros(
                config.num_experts, device=context.device, dtype=torch.promote_types(dtype, torch.float32)
            )
            self.bias = nn.Parameter(zeros, requires_grad=False)
        self.load = RouterLoad(config)

    def forward(self, x: Tensor) -> Routing:
        """Route tokens, `[tokens, hidden_size]`."""
        config = self.config
        exact = torch.promote_types(x.dtype, torch.float32)
        logits = F.linear(x.to(exact), self.weight.to(exact))
        scores = logits.softmax(-1) if config.scores == "softmax" else logits.sigmoid()
        with torch.no_grad():
            experts = self._choose(scores if self.bias is None else scores + self.bias)
        weights = scores.gather(-1, experts)
        if config.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        if config.scaling != 1.0:
            weights = weights * config.scaling
        return Routing(logits, scores, experts, weights)

    def _choose(self, scores: Tensor) -> Tensor:
        """The best experts of the best groups, `[tokens, top_k]`."""
        config = self.config
        if config.groups > 1:
            grouped = scores.unflatten(-1, (config.groups, -1))  # [tokens, groups, experts of a group]
            best = min(config.group_best, grouped.shape[-1])
            group_scores = grouped.topk(best, dim=-1).values.sum(-1)
            chosen = group_scores.topk(config.top_groups, dim=-1, sorted=False).indices
            closed = torch.ones_like(group_scores, dtype=torch.bool).scatter_(-1, chosen, False)
            scores = grouped.masked_fill(closed[..., None], float("-inf")).flatten(-2)
        return scores.topk(config.top_k, dim=-1).indices
