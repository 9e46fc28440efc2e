"""One rank's part of one parameter under FSDP2."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass(frozen=True, eq=False)
class ParameterShard:
    """Rows of a parameter, as FSDP2 divides it along dimension 0.

    Attributes:
        name: the parameter's.
        sharded: FSDP's own distributed parameter, which gathers and reduces.
        local: a parameter on this rank's memory of it, which the optimizer updates.
        start, stop: which elements of the flattened whole these are.
    """

    name: str
    sharded: nn.Parameter
    local: nn.Parameter
    start: int
    stop: int

    @staticmethod
    def of(name: str, parameter: nn.Parameter, rank: int, size: int) -> ParameterShard:
        """The shard of rank `rank` among `size`: dimension 0 in equal runs, the last ones shorter or empty."""
        assert isinstance(parameter, DTensor), name
        local = parameter.to_local()
        rows = parameter.shape[0]
        run = -(-rows // size)
        first = min(rank * run, rows)
        row = prod(parameter.shape[1:])
        start, stop = first * row, min(first + run, rows) * row
        if stop - start != local.numel():
            raise RuntimeError(f"{name}: FSDP holds {local.numel()} elements here where {stop - start} were expected")
        return ParameterShard(
            name, parameter, nn.Parameter(local.detach(), requires_grad=parameter.requires_grad), start, stop
        )

    @property
    def trained(self) -> bool:
        """Whether the optimizer updates it."""
        return self.local.requires_grad

    def take_gradient(self, scale: Tensor) -> None:
        """Hand the reduced gradient, times `scale`, to `local`; zeros where no microbatch used the parameter."""
        gradient = self.sharded.grad
        if gradient is None:
            self.local.grad = self.local.detach().clone().zero_()
            return
        assert isinstance(gradient, DTensor), self.name
        self.local.grad = gradient.to_local().mul_(scale)

    def drop_gradient(self) -> None:
        """Forget the gradient."""
        self.sharded.grad = None
        self.local.grad = None
