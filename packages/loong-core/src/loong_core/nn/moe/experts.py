"""The experts of a mixture: gated feed-forwards with their weights stacked, of which a rank holds some."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from loong_core.nn.main_gradient import main_gradient
from loong_core.parallel.context import ParallelContext
from loong_kernels import grouped_linear, swiglu

if TYPE_CHECKING:
    from loong_core.precision.layer import LayerPrecision


class Experts(nn.Module):
    """`down(silu(gate(x)) * up(x))` of each row's expert, without bias.

    Expert ranks hold different experts, expert-tensor ranks different columns between up and down of each.

    Attributes:
        gate_up: `[local_experts, 2 * local_size, hidden_size]`, gate rows first.
        down: `[local_experts, hidden_size, local_size]`.
        lora: adapters of the two (`loong_core.nn.lora_experts`) by their names, None where there are none.
        precision: makes the products where `loong_core.precision` was applied, else None.
    """

    lora: nn.ModuleDict | None

    def __init__(
        self, hidden_size: int, num_experts: int, expert_size: int, context: ParallelContext, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.precision: LayerPrecision | None = None
        expert, tensor = context.expert.size, context.expert_tensor.size
        if num_experts % expert:
            raise ValueError(f"layout.expert={expert} does not divide {num_experts} experts")
        if expert_size % tensor:
            raise ValueError(f"layout.expert_tensor={tensor} does not divide the experts' width of {expert_size}")
        local_experts, local_size = num_experts // expert, expert_size // tensor
        self.gate_up = _expert_parameter((local_experts, 2 * local_size, hidden_size), 1, context, dtype)
        self.down = _expert_parameter((local_experts, hidden_size, local_size), 2, context, dtype)
        self.lora = None

    def forward(self, rows: Tensor, offsets: Tensor) -> Tensor:
        """Transform rows that are sorted by expert.

        Args:
            rows: `[rows, hidden_size]`.
            offsets: `[local_experts]` int32, where each expert's rows end.

        Returns:
            `[rows, hidden_size]`: with several expert-tensor ranks, this rank's summand.
        """
        if self.precision is not None and self.lora is None:
            return self.precision.experts(rows, self.gate_up, self.down, offsets)
        gate_up = grouped_linear(rows, self.gate_up, offsets, weight_grad_into=main_gradient(self.gate_up))
        inner = swiglu(self._adapted("gate_up", rows, offsets, gate_up))
        down = grouped_linear(inner, self.down, offsets, weight_grad_into=main_gradient(self.down))
        return self._adapted("down", inner, offsets, down)

    def _adapted(self, product: str, rows: Tensor, offsets: Tensor, output: Tensor) -> Tensor:
        """A product's output with what adapters add to it."""
        if self.lora is None or product not in self.lora:
            return output
        return self.lora[product](rows, offsets, output)


def _expert_parameter(
    shape: tuple[int, int, int], cut_dim: int, context: ParallelContext, dtype: torch.dtype
) -> nn.Parameter:
    """An uninitialised weight with the attributes that engines read: `allreduce=False` says that it is an expert's."""
    parameter = nn.Parameter(torch.empty(shape, device=context.device, dtype=dtype))
    parameter.allreduce = False  # type: ignore[attr-defined]
    parameter.tensor_model_parallel = context.expert_tensor.size > 1  # type: ignore[attr-defined]
    parameter.partition_dim = cut_dim  # type: ignore[attr-defined]
    parameter.partition_stride = 1  # type: ignore[attr-defined]
    parameter.shared = False  # type: ignore[attr-defined]
    return parameter
