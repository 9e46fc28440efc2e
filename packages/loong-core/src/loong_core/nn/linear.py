"""Linear layers whose matrix the tensor ranks share.

A column-parallel layer holds some of the outputs, a row-parallel one some of the inputs; put one after the other they
need the tokens gathered once before and summed once after (arXiv:1909.08053), and between such pairs each tensor rank
holds its run of the tokens only (sequence parallelism, arXiv:2205.05198).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from loong_core.nn.four_bit import FourBitWeight
from loong_core.nn.main_gradient import main_gradient
from loong_core.nn.overlapped_linear import gathered_linear, scattered_linear
from loong_core.parallel.collectives import copy_to_all, gather_tokens, sum_to_tokens
from loong_core.parallel.context import ALONE, Axis, ParallelContext
from loong_kernels import linear

if TYPE_CHECKING:
    from loong_core.precision.layer import LayerPrecision


def share(parameter: nn.Parameter, dim: int, context: ParallelContext, *, counted: bool = True) -> nn.Parameter:
    """Mark a parameter as this tensor rank's part of a tensor cut along `dim`, in the attributes that engines read.

    Args:
        parameter: the local part.
        dim: the dimension that is cut.
        context: over whose tensor axis.
        counted: False on a rank whose part is a copy that another tensor rank counts in the gradient's norm.
    """
    parameter.tensor_model_parallel = context.tensor.size > 1  # type: ignore[attr-defined]
    parameter.partition_dim = dim  # type: ignore[attr-defined]
    parameter.partition_stride = 1  # type: ignore[attr-defined]
    parameter.shared = not counted  # type: ignore[attr-defined]
    return parameter


class ColumnParallelLinear(nn.Module):
    """`x W^T + b` for this tensor rank's rows of `W`: `[tokens, in_features]` to `[tokens, local_out_features]`.

    The caller gathers the tokens first (`gather_tokens`), once for all layers that read them; a layer that alone reads
    them gathers them itself (`of_runs`), behind its products.

    Args:
        in_features: width of the input, whole on every rank.
        local_out_features: outputs that this rank computes.
        bias: whether there is one.
        context: the tensor axis is the one that shares the outputs.
        dtype: of the parameters.
        replicas: tensor ranks that hold the same rows as this one; their gradients are summed in backward.

    Attributes:
        weight: `[local_out_features, in_features]`; a parameter, or frozen in 4 bits.
        precision: makes the products where `loong_core.precision` was applied, else None.
    """

    weight: nn.Parameter | FourBitWeight

    def __init__(
        self,
        in_features: int,
        local_out_features: int,
        bias: bool,
        context: ParallelContext,
        dtype: torch.dtype,
        replicas: Axis = ALONE,
    ) -> None:
        super().__init__()
        self.precision: LayerPrecision | None = None
        self.axis = context.tensor
        self.replicas = replicas
        first = replicas.rank == 0
        weight = torch.empty(local_out_features, in_features, device=context.device, dtype=dtype)
        self.weight = share(nn.Parameter(weight), 0, context, counted=first)
        self.bias = None
        if bias:
            zeros = torch.zeros(local_out_features, device=context.device, dtype=dtype)
            self.bias = share(nn.Parameter(zeros), 0, context, counted=first)

    def forward(self, x: Tensor) -> Tensor:
        """Multiply `x`, `[tokens, in_features]`."""
        bias = None if self.bias is None else copy_to_all(self.bias, self.replicas)
        if isinstance(self.weight, FourBitWeight):
            return self.weight.linear(x, bias)
        weight = copy_to_all(self.weight, self.replicas)
        if self.precision is not None:
            return self.precision.linear(x, weight, bias)
        return linear(x, weight, bias, weight_grad_into=main_gradient(weight))

    def of_runs(self, x: Tensor, tokens: int) -> Tensor:
        """Multiply the tensor ranks' runs of tokens, joined.

        Args:
            x: `[tokens / tensor, in_features]`, this rank's run.
            tokens: how many there are in all.
        """
        if self.axis.size == 1:
            return self(x)
        whole = self._forward_hooks or self.replicas.size > 1 or self.precision is not None
        if whole or isinstance(self.weight, FourBitWeight):
            # Whoever else reads the input (an adapter), communicates in backward (copies), rounds it, or has its matrix
            # in 4 bits wants it whole.
            return self(gather_tokens(x, self.axis, tokens))
        into = main_gradient(self.weight)
        return gathered_linear(x, self.weight, self.bias, self.axis, tokens, weight_grad_into=into)


class RowParallelLinear(nn.Module):
    """`x W^T + b` for this tensor rank's columns of `W`, summed over the tensor ranks.

    Takes `[tokens, local_in_features]` and returns this rank's run of the tokens, `[tokens / tensor, out_features]`.
    The bias is whole on every rank and added to its own tokens, so its gradient is a partial sum (`sequence_parallel`).
    `weight` and `precision` are as of `ColumnParallelLinear`.
    """

    weight: nn.Parameter | FourBitWeight

    def __init__(
        self, local_in_features: int, out_features: int, bias: bool, context: ParallelContext, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.precision: LayerPrecision | None = None
        self.axis = context.tensor
        weight = torch.empty(out_features, local_in_features, device=context.device, dtype=dtype)
        self.weight = share(nn.Parameter(weight), 1, context)
        self.bias = None
        if bias:
            self.bias = nn.Parameter(torch.zeros(out_features, device=context.device, dtype=dtype))
            self.bias.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]

    def forward(self, x: Tensor) -> Tensor:
        """Multiply `x`, `[tokens, local_in_features]`."""
        if isinstance(self.weight, FourBitWeight):
            y = sum_to_tokens(self.weight.linear(x), self.axis)
            return y if self.bias is None else y + self.bias
        into = main_gradient(self.weight)
        if self.precision is not None:
            y = sum_to_tokens(self.precision.linear(x, self.weight, None), self.axis)
        elif self.axis.size == 1:
            y = linear(x, self.weight, weight_grad_into=into)
        else:
            y = scattered_linear(x, self.weight, self.axis, weight_grad_into=into)
        return y if self.bias is None else y + self.bias


def parallel_linears(stage: nn.Module) -> list[tuple[str, ColumnParallelLinear | RowParallelLinear]]:
    """The linear layers of a stage's blocks, with their names."""
    kinds = (ColumnParallelLinear, RowParallelLinear)
    return [(name, module) for name, module in stage.named_modules() if isinstance(module, kinds)]
