"""What routers are taught besides the loss, and what is counted of them, while a microbatch passes.

Auxiliary losses never enter the loss that is reported. Their gradients join in backward, at the routers' weights, in
the unit of an engine's loss: the sum over trained tokens, not yet divided. A microbatch's auxiliary loss therefore
counts as often as it has trained tokens, and dividing by the global batch's tokens makes it a mean. Counting happens
in backward too, so a forward that is repeated (recomputed activations) or trains nothing (evaluation) is not counted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from loong_core.nn.moe.config import RouterConfig
from loong_core.parallel.context import ParallelContext

if TYPE_CHECKING:
    from loong_core.nn.moe.router import Routing


class RoutingRecord:
    """What the layers of one forward of one microbatch share.

    Args:
        tokens: of the microbatch, on all tensor and context ranks together.
        trained: scalar, those of them that are trained on; the same on every rank that shares the microbatch.
        layers: mixture layers of the whole model.
    """

    def __init__(self, tokens: int, trained: Tensor, layers: int) -> None:
        self.tokens = tokens
        self.trained = trained
        self.layers = layers
        self.shares: dict[int, Tensor] = {}  # by layer: `[num_experts]`, choices of each expert per token

    def mean_share(self) -> Tensor:
        """`[num_experts]`, averaged over the layers; complete once the whole model's forward is."""
        return torch.stack(list(self.shares.values())).mean(0)


class RouterLoad:
    """One router's counts on this rank, all None (or 0) from the end of a step to the next microbatch.

    Attributes:
        config: the router's.
        counts: `[num_experts]` float64, how often each expert was chosen.
        dropped: scalar float64, choices that experts had no room for.
        aux, z: scalars float64, this layer's part of the auxiliary and the z loss, summed over microbatches.
        microbatches: how many.
        step_counts: `counts` of the step before, over all ranks.
    """

    def __init__(self, config: RouterConfig) -> None:
        self.config = config
        self.end_step(None)

    def end_step(self, counts: Tensor | None) -> None:
        """Begin anew; `counts` are the past step's over all ranks."""
        self.step_counts = counts
        self.counts: Tensor | None = None
        self.dropped: Tensor | None = None
        self.aux: Tensor | None = None
        self.z: Tensor | None = None
        self.microbatches = 0

    def add(self, counts: Tensor, dropped: Tensor, aux: Tensor, z: Tensor) -> None:
        """Count a microbatch."""
        new = [each.to(torch.float64) for each in (counts, dropped, aux, z)]
        if self.counts is None or self.dropped is None or self.aux is None or self.z is None:
            self.counts, self.dropped, self.aux, self.z = new
        else:
            self.counts += new[0]
            self.dropped += new[1]
            self.aux += new[2]
            self.z += new[3]
        self.microbatches += 1


def with_router_losses(
    routing: Routing,
    load: RouterLoad,
    record: RoutingRecord,
    context: ParallelContext,
    *,
    layer: int,
    real: Tensor | None,
    counts: Tensor,
    dropped: Tensor,
) -> Tensor:
    """The routing's weights, in whose backward the auxiliary losses join and the load is counted.

    Args:
        routing: of this rank's tokens.
        load: the router's, to count in.
        record: of this forward.
        context: tensor and context ranks share the microbatch; the losses are over all of it.
        layer: number of the layer.
        real: `[local tokens]` bool, False for tokens that only fill up the last rank's run; None if all are real.
        counts: `[num_experts]`, how often each expert was chosen, by tokens that fill up too.
        dropped: scalar, choices that this rank's experts had no room for.
    """
    config = load.config
    if real is not None:
        fillers = torch.logical_not(real)[:, None].expand_as(routing.experts).to(counts.dtype)
        counts = counts.scatter_add(0, routing.experts.flatten(), -fillers.flatten())
    if config.aux_coefficient:
        shares = counts.to(routing.scores.dtype) / record.tokens
        record.shares[layer] = _over_microbatch(shares, context)
    # A sigmoid's scores are made to add up to one, as a softmax's do.
    scores = routing.scores
    if config.scores == "sigmoid" and config.aux_coefficient:
        scores = scores / scores.sum(-1, keepdim=True)
    log_sum_exp = routing.logits.logsumexp(-1) if config.z_coefficient else scores.new_zeros(scores.shape[0])
    return _RouterLosses.apply(routing.weights, scores, log_sum_exp, load, record, layer, real, counts, dropped)  # type: ignore[no-any-return]


def _over_microbatch(x: Tensor, context: ParallelContext) -> Tensor:
    """The sum over the ranks that share a microbatch."""
    for axis in (context.tensor, context.context):
        if axis.size > 1:
            dist.all_reduce(x, group=axis.group)
    return x


def _only(x: Tensor, real: Tensor | None) -> Tensor:
    """`x`, `[tokens, ...]`, with zeros where a token is not real."""
    return x if real is None else x * real.view(-1, *([1] * (x.ndim - 1)))


class _RouterLosses(Function):
    @staticmethod
    def forward(
        ctx: Any,
        weights: Tensor,
        scores: Tensor,
        log_sum_exp: Tensor,
        load: RouterLoad,
        record: RoutingRecord,
        layer: int,
        real: Tensor | None,
        counts: Tensor,
        dropped: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(scores, log_sum_exp)
        ctx.load, ctx.record, ctx.layer = load, record, layer
        ctx.real, ctx.counts, ctx.dropped = real, counts, dropped
        return weights.view_as(weights)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        scores, log_sum_exp = ctx.saved_tensors
        load: RouterLoad = ctx.load
        record: RoutingRecord = ctx.record
        config = load.config
        per_token = 1.0 / (record.tokens * record.layers)  # means over tokens and layers
        scores_gradient = log_sum_exp_gradient = None
        aux = z = scores.new_zeros(())
        if config.aux_coefficient:
            share = record.shares[ctx.layer] if config.aux_scope == "layer" else record.mean_share()
            slope = (per_token * config.num_experts) * share  # [num_experts]
            aux = (_only(scores, ctx.real).sum(0) * slope).sum()
            scores_gradient = _only((config.aux_coefficient * record.trained * slope).expand_as(scores), ctx.real)
        if config.z_coefficient:
            real_sums = _only(log_sum_exp, ctx.real)
            z = per_token * real_sums.square().sum()
            log_sum_exp_gradient = (2 * config.z_coefficient * per_token) * record.trained * real_sums
        load.add(ctx.counts, ctx.dropped, aux, z)
        return grads[0], scores_gradient, log_sum_exp_gradient, *([None] * 6)
