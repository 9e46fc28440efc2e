"""One call of an op that an implementation is checked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

Call = Callable[[Mapping[str, Tensor]], Tensor | tuple[Tensor, ...]]
Make = Callable[[torch.Generator], dict[str, Tensor]]


@dataclass(frozen=True)
class Sample:
    """Inputs of an op, and how to call it.

    Attributes:
        op: name of the op.
        name: what is special about it, in words.
        make: float64 tensors on the host by name, from a seeded generator; tensors of integers stay as they are.
        call: the public function on such tensors, moved and rounded.
        dtype: to which floating tensors are rounded.
        wider: names of tensors that stay float32 where `dtype` is narrower.
        constant: names of floating tensors that get no gradient.
        views: by name, how a tensor is laid out anew without changing its values (strides that a caller may bring).
        tolerance: how many rounding errors of `dtype` a result may be off, relative to its own size and to the root
            mean square of its tensor.
        uniform_upstream: the upstream gradient is one number for all elements, as from a sum: a tensor of strides 0.
        upstream_view: how the upstream gradient is laid out anew.
        gradients_alone: also ask for each gradient without the others, as where parameters are frozen.
    """

    op: str
    name: str
    make: Make
    call: Call
    dtype: torch.dtype = torch.float32
    wider: frozenset[str] = frozenset()
    constant: frozenset[str] = frozenset()
    views: Mapping[str, Callable[[Tensor], Tensor]] = field(default_factory=dict)
    tolerance: float = 16.0
    uniform_upstream: bool = False
    upstream_view: Callable[[Tensor], Tensor] = torch.clone
    gradients_alone: bool = False

    def tensors(self) -> dict[str, Tensor]:
        """The inputs on the host, in float64 but rounded to what the implementation is given."""
        made = self.make(torch.Generator().manual_seed(20))
        return {
            name: self.rounded(name, tensor).double() if tensor.is_floating_point() else tensor
            for name, tensor in made.items()
        }

    def rounded(self, name: str, tensor: Tensor) -> Tensor:
        """A floating tensor in the dtype that the implementation is given."""
        return tensor.to(torch.promote_types(self.dtype, torch.float32) if name in self.wider else self.dtype)

    def differentiable(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Names of the tensors that get a gradient."""
        return [name for name, tensor in tensors.items() if tensor.is_floating_point() and name not in self.constant]

    def __str__(self) -> str:
        return f"{self.name}, {str(self.dtype).removeprefix('torch.')}"


def inside_a_larger_tensor(tensor: Tensor) -> Tensor:
    """The same values as a slice of a tensor that is larger in every dimension, as of a fused projection's output."""
    larger = torch.full([size + 3 for size in tensor.shape], 77, dtype=tensor.dtype, device=tensor.device)
    inner = larger[tuple(slice(1, size + 1) for size in tensor.shape)]
    return inner.copy_(tensor)


def transposed(tensor: Tensor) -> Tensor:
    """The same values with the last two dimensions exchanged in memory, so that vectors are not contiguous."""
    if tensor.ndim == 1:
        return inside_a_larger_tensor(tensor[:, None])[:, 0]
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def in_both_dtypes(sample: Sample) -> Iterator[Sample]:
    """The sample in float32 and in bfloat16."""
    yield replace(sample, dtype=torch.float32)
    yield replace(sample, dtype=torch.bfloat16)


def laid_out(sample: Sample, *names: str) -> Iterator[Sample]:
    """The sample with the named inputs as slices and not contiguous, with one upstream number, and in parts."""
    for name, view in (("slices", inside_a_larger_tensor), ("vectors not contiguous", transposed)):
        yield replace(sample, name=name, views=dict.fromkeys(names, view))
        yield replace(sample, name=f"{name} in the upstream gradient", upstream_view=view)
    yield replace(sample, name="uniform upstream gradient", uniform_upstream=True)
    yield replace(sample, name="each gradient alone", gradients_alone=True)


def summed(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight, and a sum for its gradient to be added to: what an op adds there counts as the weight's gradient.

    The sum starts at a number other than zero, so that an op that overwrites it is found out.
    """
    total = torch.full(
        weight.shape, _START, dtype=torch.promote_types(weight.dtype, torch.float32), device=weight.device
    )
    return _ReadSum.apply(weight, total), total  # type: ignore[return-value]


_START = 1.0


class _ReadSum(torch.autograd.Function):
    """Passes a weight on; its gradient is what was added to the sum, and what was returned as well."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, total: Tensor) -> Tensor:
        ctx.total = total
        return weight.view_as(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        added = ctx.total - _START
        ctx.total.fill_(_START)
        return (gradients[0] + added).to(gradients[0].dtype), None
