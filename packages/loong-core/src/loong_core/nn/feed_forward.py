"""Gated feed-forward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.nn.decoder_config import FeedForwardConfig
from loong_core.nn.linear import ColumnParallelLinear, RowParallelLinear
from loong_core.parallel.context import ParallelContext
from loong_core.precision.layer import feed_forward_in_bits
from loong_kernels import swiglu


class FeedForward(nn.Module):
    """`down(silu(gate(x)) * up(x))`, gate and up in one matrix: this rank's gate rows, then its up rows."""

    def __init__(
        self, hidden_size: int, config: FeedForwardConfig, context: ParallelContext, dtype: torch.dtype
    ) -> None:
        super().__init__()
        if config.intermediate_size % context.tensor.size:
            raise ValueError(
                f"layout.tensor={context.tensor.size} does not divide intermediate_size {config.intermediate_size}"
            )
        local = config.intermediate_size // context.tensor.size
        self.gate_up = ColumnParallelLinear(hidden_size, 2 * local, config.bias, context, dtype)
        self.down = RowParallelLinear(local, hidden_size, config.bias, context, dtype)

    def forward(self, x: Tensor, tokens: int, record: object = None) -> Tensor:
        """Transform this rank's run of `tokens` tokens, `[tokens / tensor, hidden_size]`; nothing is recorded."""
        fused = feed_forward_in_bits(self.gate_up, self.down, x)
        if fused is not None:
            return fused
        return self.down(swiglu(self.gate_up.of_runs(x, tokens)))
