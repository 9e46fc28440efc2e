"""The feed-forward of a block as a mixture of experts."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.nn.decoder_config import FeedForwardConfig
from loong_core.nn.feed_forward import FeedForward
from loong_core.nn.moe.config import MoEConfig
from loong_core.nn.moe.dispatch import at_experts
from loong_core.nn.moe.experts import Experts
from loong_core.nn.moe.load import RoutingRecord, with_router_losses
from loong_core.nn.moe.router import Router, Routing
from loong_core.parallel.context import ParallelContext
from loong_kernels import combine_from_experts, order_by_expert, permute_to_experts


class MixtureOfExperts(nn.Module):
    """Each token through the experts that the router chose for it, added up by their weights, and the shared expert.

    Args:
        hidden_size: width of the residual stream.
        config: router, experts and shared expert.
        context: `expert` and `expert_tensor` share the experts; each tensor rank brings its own tokens.
        dtype: of the parameters.
        layer: global number of the block.
    """

    def __init__(
        self, hidden_size: int, config: MoEConfig, context: ParallelContext, dtype: torch.dtype, layer: int
    ) -> None:
        super().__init__()
        self.config = config
        self.parallel = context
        self.layer = layer
        self.router = Router(hidden_size, config.router, context, dtype)
        self.experts = Experts(hidden_size, config.router.num_experts, config.expert_size, context, dtype)
        self.shared = self.shared_gate = None
        if config.shared_size:
            self.shared = FeedForward(hidden_size, FeedForwardConfig(config.shared_size), context, dtype)
        if config.shared_gate:
            self.shared_gate = nn.Linear(hidden_size, 1, bias=False, device=context.device, dtype=dtype)
            self.shared_gate.weight.sequence_parallel = context.sequence_parallel  # type: ignore[assignment]

    def forward(self, x: Tensor, tokens: int, record: RoutingRecord | None = None) -> Tensor:
        """Transform this rank's run of tokens.

        Args:
            x: `[tokens / tensor, hidden_size]`.
            tokens: of the microbatch (of this context rank's share of it), on all tensor ranks together.
            record: of this forward; with one, auxiliary losses act and the load is counted in backward.

        Returns:
            As `x`.
        """
        routing: Routing = self.router(x)
        config = self.config.router
        capacity = None
        if self.config.capacity_factor is not None:
            even = x.shape[0] * config.top_k / config.num_experts
            capacity = max(1, math.ceil(even * self.config.capacity_factor))
        by_score = capacity is not None and self.config.drop == "score"
        priority = routing.weights.detach() if by_score else None
        order = order_by_expert(routing.experts, config.num_experts, capacity=capacity, priority=priority)
        weights = routing.weights
        if record is not None and torch.is_grad_enabled():
            weights = with_router_losses(
                routing,
                self.router.load,
                record,
                self.parallel,
                layer=self.layer,
                real=self._real_tokens(x, tokens),
                counts=order.counts,
                dropped=(order.row_of_choice < 0).sum(),
            )
        results = at_experts(permute_to_experts(x, order), order.offsets, self.experts, self.parallel)
        y = combine_from_experts(results, weights, order)
        return y if self.shared is None else y + self._shared_part(x, tokens)

    def _shared_part(self, x: Tensor, tokens: int) -> Tensor:
        """What the shared expert makes of this rank's tokens."""
        assert self.shared is not None
        y = self.shared(x, tokens)
        return y if self.shared_gate is None else y * F.sigmoid(self.shared_gate(x))

    def _real_tokens(self, x: Tensor, tokens: int) -> Tensor | None:
        """Which of this rank's rows are tokens, `[tokens / tensor]` bool; None if all are."""
        axis = self.parallel.tensor
        real = tokens - axis.rank * x.shape[0]
        return None if real >= x.shape[0] else torch.arange(x.shape[0], device=x.device) < real
