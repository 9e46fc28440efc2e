"""One implementation on one sample, against the reference in float64."""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from loong_kernels import registry
from loong_kernels.conformance.sample import Sample
from loong_kernels.registry import Implementation, KernelChoiceError


@dataclass(frozen=True)
class Check:
    """Call it to check one implementation on one sample.

    Attributes:
        device: where the implementation runs.
        implementation: what is checked.
        sample: the call.
    """

    device: torch.device
    implementation: Implementation
    sample: Sample

    @property
    def subject(self) -> str:
        """What is checked: op, implementation and device."""
        return f"{self.sample.op}/{self.implementation.name} on {self.device}"

    def __str__(self) -> str:
        return f"{self.subject}: {self.sample}"

    def __call__(self) -> None:
        """Run the check.

        Raises:
            AssertionError: the implementation is wrong; the message says in what and by how much.
            unittest.SkipTest: the implementation declines this shape class; the message says why.
        """
        inputs = self.sample.tensors()
        gradients = self.sample.differentiable(inputs)
        with registry.using({self.sample.op: "reference"}):
            exact = {name: tensor.requires_grad_(name in gradients) for name, tensor in inputs.items()}
            expected = _results(self.sample, exact)
        with registry.using({self.sample.op: self.implementation.name}):
            try:
                actual = self._run(inputs, gradients)
            except KernelChoiceError as error:
                raise unittest.SkipTest(error.declined[0].reason if error.declined else str(error)) from None
            self._compare(actual, expected)
            if self.device.type not in self.implementation.nondeterministic_on:
                again = self._run(inputs, gradients)
                different = [name for name in actual if not _same_bits(actual[name], again[name])]
                assert not different, f"a second run gave other bits: {', '.join(different)}"
            if self.sample.gradients_alone:
                for name in gradients:
                    self._compare(self._run(inputs, [name]), expected)

    def _run(self, inputs: Mapping[str, Tensor], gradients: list[str]) -> dict[str, Tensor]:
        """Outputs and the gradients of the inputs named, of the implementation on its device."""
        given = {name: self._given(name, tensor.detach()) for name, tensor in inputs.items()}
        before = {name: tensor.clone() for name, tensor in given.items()}
        for name in gradients:
            given[name].requires_grad_()
        with _PoisonedMemory():
            results = _results(self.sample, given)
        changed = [name for name, tensor in given.items() if not _same_bits(tensor.detach(), before[name])]
        assert not changed, f"inputs were written to: {', '.join(changed)}"
        return results

    def _given(self, name: str, tensor: Tensor) -> Tensor:
        """An input as the implementation gets it: its dtype, its device, its strides."""
        if tensor.is_floating_point():
            tensor = self.sample.rounded(name, tensor)
        return self.sample.views.get(name, torch.clone)(tensor.to(self.device))

    def _compare(self, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
        rounding = torch.finfo(self.sample.dtype).eps
        largest = max((_size(tensor) for tensor in expected.values()), default=0.0)
        for name, result in actual.items():
            wanted = expected[name]
            assert result.shape == wanted.shape, f"{name} has shape {list(result.shape)}, not {list(wanted.shape)}"
            assert result.device.type == self.device.type, f"{name} is on {result.device}"
            if not result.is_floating_point():
                assert torch.equal(result.cpu(), wanted.to(result.dtype)), f"{name} differs from the reference's"
                continue
            assert result.isfinite().all(), f"{name} has {int((~result.isfinite()).sum())} elements that are not finite"
            error = (result.detach().cpu().double() - wanted.detach()).abs()
            # What cancels to nothing is compared with the other results' size: it is made of numbers as large.
            size = wanted.detach().abs() + (_size(wanted) or largest)
            allowed = self.sample.tolerance * rounding * size
            excess = (error - allowed).max().item() if error.numel() else 0.0
            assert excess <= 0, (
                f"{name} is off by {error.max().item():.3g}, {(error / allowed).max().item():.3g} times the "
                f"{self.sample.tolerance:g} rounding errors allowed"
            )
            if name.startswith("gradient of "):
                given = self._given_dtype(name.removeprefix("gradient of "))
                assert result.dtype == given, f"{name} is {result.dtype}, the input {given}"

    def _given_dtype(self, name: str) -> torch.dtype:
        return self.sample.rounded(name, torch.empty(0, dtype=torch.float64)).dtype


def _results(sample: Sample, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The call's outputs and the gradients of what requires one, by name."""
    returned = sample.call(given)
    outputs = (returned,) if isinstance(returned, Tensor) else tuple(returned)
    results = {f"output {index}": output.detach() for index, output in enumerate(outputs)}
    names = [name for name, tensor in given.items() if tensor.requires_grad]
    pairs = [(output, _upstream(sample, index, output)) for index, output in enumerate(outputs) if output.requires_grad]
    if not pairs:
        return results
    gradients = torch.autograd.grad([output for output, _ in pairs], [given[name] for name in names],
                                    [upstream for _, upstream in pairs])  # fmt: skip
    results.update({f"gradient of {name}": gradient for name, gradient in zip(names, gradients)})
    return results


def _upstream(sample: Sample, index: int, output: Tensor) -> Tensor:
    if sample.uniform_upstream:
        return torch.full((), 0.5, dtype=output.dtype, device=output.device).expand(output.shape)
    generator = torch.Generator().manual_seed(40 + index)
    drawn = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    return sample.upstream_view(drawn.to(sample.dtype).to(output.device, output.dtype))


def _size(tensor: Tensor) -> float:
    """Root mean square."""
    return tensor.detach().double().square().mean().sqrt().item() if tensor.numel() else 0.0


def _same_bits(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.nan_to_num(1.0), other.nan_to_num(1.0))


class _PoisonedMemory(TorchDispatchMode):
    """Fills new tensors with NaN, so that what an implementation leaves unwritten shows."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _UNINITIALISED and result.is_floating_point():
            result.fill_(float("nan"))
        return result


_UNINITIALISED = frozenset(
    {
        torch.ops.aten.empty,
        torch.ops.aten.empty_like,
        torch.ops.aten.empty_strided,
        torch.ops.aten.new_empty,
        torch.ops.aten.new_empty_strided,
    }
)
