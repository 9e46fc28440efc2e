"""Measuring layers in bf16 and in 8 bits on the device at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from loong_core.device.protocol import Device
from loong_core.precision.table import Row, Work
from loong_kernels import grouped_linear, linear, swiglu
from loong_kernels.fp8.experts import fp8_experts
from loong_kernels.fp8.formats import Recipe
from loong_kernels.fp8.linear import fp8_linear
from loong_kernels.fp8.weights import weight_in_bits

TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
RECIPES: tuple[Recipe, ...] = ("blockwise", "rowwise", "tensorwise")
REPEATS = 5
LEAD, LEADS = 8192, 3
"""Side and number of the products that keep the device busy while the host launches what is timed."""


def measured_rows(
    works: Iterable[Work],
    device: Device,
    bound: torch.device,
    tokens: Iterable[int] = TOKENS,
    repeats: int = REPEATS,
) -> Iterator[Row]:
    """Measure each shape at each number of tokens; of experts the rows are eight times as many.

    Args:
        works: the shapes.
        device: whose events time.
        bound: where the tensors are.
        tokens: numbers of tokens.
        repeats: how often each is run; the median counts.
    """
    counts = list(tokens)
    for work in works:
        for count in counts:
            rows = count if work.kind == "linear" else 8 * count
            calls = _linear_calls(work, rows, bound) if work.kind == "linear" else _expert_calls(work, rows, bound)
            times = {name: _microseconds(call, device, bound, repeats) for name, call in calls.items()}
            yield Row(
                work,
                rows,
                {name: round(on_device, 1) for name, (on_device, _) in times.items()},
                {name: round(on_host, 1) for name, (_, on_host) in times.items()},
            )


def _linear_calls(work: Work, tokens: int, bound: torch.device) -> dict[str, Callable[[], None]]:
    weight = _random((work.out_features, work.in_features), bound).mul_(0.02).requires_grad_()
    x = _random((tokens, work.in_features), bound).requires_grad_()
    upstream = _random((tokens, work.out_features), bound)
    total = torch.zeros(weight.shape, device=bound)

    def plain() -> None:
        _back(linear(x, weight, weight_grad_into=total), (x, weight), upstream)

    def in_bits(recipe: Recipe) -> Callable[[], None]:
        held = weight_in_bits(weight, recipe)

        def call() -> None:
            y = fp8_linear(x, weight, recipe=recipe, in_bits=held, weight_grad_into=total)
            _back(y, (x, weight), upstream)

        return call

    return {"bf16": plain} | {recipe: in_bits(recipe) for recipe in RECIPES}


def _expert_calls(work: Work, rows: int, bound: torch.device) -> dict[str, Callable[[], None]]:
    experts, size, hidden = work.experts, work.out_features, work.in_features
    gate_up = _random((experts, 2 * size, hidden), bound).mul_(0.02).requires_grad_()
    down = _random((experts, hidden, size), bound).mul_(0.02).requires_grad_()
    x, upstream = _random((rows, hidden), bound).requires_grad_(), _random((rows, hidden), bound)
    totals = torch.zeros(gate_up.shape, device=bound), torch.zeros(down.shape, device=bound)
    chosen = torch.randint(experts, (rows,), device=bound)
    offsets = torch.bincount(chosen, minlength=experts).cumsum(0).to(torch.int32)
    held = weight_in_bits(gate_up, "blockwise"), weight_in_bits(down, "blockwise")

    def plain() -> None:
        between = grouped_linear(x, gate_up, offsets, weight_grad_into=totals[0])
        y = grouped_linear(swiglu(between), down, offsets, weight_grad_into=totals[1])
        _back(y, (x, gate_up, down), upstream)

    def in_bits() -> None:
        y = fp8_experts(x, gate_up, down, offsets, in_bits=held, weight_grads_into=totals)
        _back(y, (x, gate_up, down), upstream)

    return {"bf16": plain, "blockwise": in_bits}


def _back(y: Tensor, inputs: tuple[Tensor, ...], upstream: Tensor) -> None:
    """Backward for all inputs; of weights, whose gradients go to their sums, nothing is returned."""
    torch.autograd.grad(y, inputs, upstream, allow_unused=True)


def _random(shape: tuple[int, ...], bound: torch.device) -> Tensor:
    return torch.randn(shape, device=bound, dtype=torch.bfloat16)


def _microseconds(call: Callable[[], None], device: Device, bound: torch.device, repeats: int) -> tuple[float, float]:
    """Time on the device and on the host that launches the work, medians of several runs after two to warm up.

    The device is given other work first, so that it never waits for the host and its own time is seen.
    """
    lead = torch.ones(LEAD if bound.type != "cpu" else 16, LEAD if bound.type != "cpu" else 16, device=bound)
    lead = lead.to(torch.bfloat16)
    on_device, on_host = [], []
    for _ in range(repeats + 2):
        device.synchronize()
        for _ in range(LEADS):
            lead @ lead
        start, end = device.event(), device.event()
        start.record()
        began = perf_counter()
        call()
        on_host.append((perf_counter() - began) * 1e6)
        end.record()
        end.synchronize()
        on_device.append(start.elapsed_time(end) * 1e3)
    return median(on_device[2:]), median(on_host[2:])
