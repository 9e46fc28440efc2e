"""A pre-norm residual block."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from loong_core.data.batch import PackedBatch
from loong_core.nn.attention import Attention
from loong_core.nn.decoder_config import BlockConfig
from loong_core.nn.feed_forward import FeedForward
from loong_core.nn.key_value_cache import KeyValueCache
from loong_core.nn.moe.config import MoEConfig
from loong_core.nn.moe.layer import MixtureOfExperts
from loong_core.nn.moe.load import RoutingRecord
from loong_core.nn.norm import ResidualNorm
from loong_core.parallel.context import ParallelContext


class Block(nn.Module):
    """`x + attention(norm(x))`, then `x + feed_forward(norm(x))`."""

    def __init__(
        self,
        hidden_size: int,
        config: BlockConfig,
        norm_eps: float,
        context: ParallelContext,
        dtype: torch.dtype,
        layer: int,
    ) -> None:
        super().__init__()
        self.attention_norm = ResidualNorm(hidden_size, norm_eps, context, dtype)
        self.attention = Attention(hidden_size, config.mixer, norm_eps, context, dtype, layer)
        self.feed_forward_norm = ResidualNorm(hidden_size, norm_eps, context, dtype)
        if isinstance(config.feed_forward, MoEConfig):
            self.feed_forward = MixtureOfExperts(hidden_size, config.feed_forward, context, dtype, layer)
        else:
            self.feed_forward = FeedForward(hidden_size, config.feed_forward, context, dtype)

    def forward(
        self,
        stream: Tensor,
        added: Tensor | None,
        batch: PackedBatch,
        rotation: tuple[Tensor, Tensor],
        cache: KeyValueCache | None = None,
        record: RoutingRecord | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Transform this rank's run of the batch's tokens, `[tokens / tensor, hidden_size]`.

        What a layer adds to the residual stream is added by the norm that comes next, in the pass that normalises.

        Args:
            stream: the residual stream.
            added: what the block before adds to it; None for the first.
            batch: see `Attention` and `MixtureOfExperts`, as for what follows.
            rotation: likewise.
            cache: likewise.
            record: likewise.

        Returns:
            the stream, and what this block's feed-forward adds to it.
        """
        x, stream = self.attention_norm(stream, added)
        x, stream = self.feed_forward_norm(stream, self.attention(x, batch, rotation, cache))
        return stream, self.feed_forward(x, batch.tokens.shape[0], record)

    @staticmethod
    def fewer_inputs(stream: Tensor, added: Tensor | None, *others: Any) -> tuple[Any, ...]:
        """Arguments of a forward that gives the same numbers, with one tensor less for whoever keeps them.

        The norm rounds the sum before it normalises it, so taking the sum beforehand changes nothing.
        """
        return (stream if added is None else stream + added, None, *others)
