"""Calls of `quantise_swiglu` and its gradient that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, inside_a_larger_tensor, normal
from loong_kernels.fp8.formats import Grain
from loong_kernels.ops.quantise_swiglu import SwiGLUInBits, quantise_swiglu, quantise_swiglu_gradient

ONE_STEP = 2.0**-3 / torch.finfo(torch.float32).eps
"""A number that lies where two roundings meet may go either way: at most one step of e4m3."""


def _numbers_of(made: SwiGLUInBits) -> tuple[Tensor, ...]:
    operands = [each for each in made.quantised if each is not None]
    numbers = tuple(each.dequantised(torch.float64) for each in operands)
    return numbers if made.kept is None else (*numbers, made.kept)


def samples() -> Iterator[Sample]:
    """Every grain, odd numbers of tokens, strides, parts of the results."""

    def sample(name: str, tokens: int, intermediate: int, grain: Grain = "tiles", **parts: Any) -> Sample:
        return Sample(
            "quantise_swiglu",
            name,
            lambda generator: {"gate_up": 3 * normal(generator, tokens, 2 * intermediate)},
            lambda t: _numbers_of(quantise_swiglu(t["gate_up"], grain, **parts)),
            constant=frozenset({"gate_up"}),
            tolerance=ONE_STEP,
        )

    plain = sample("odd number of tokens", 133, 256, keep=True)
    yield plain
    yield replace(plain, dtype=torch.bfloat16, tolerance=16)
    yield replace(plain, name="slices", views={"gate_up": inside_a_larger_tensor})
    yield sample("one token by row", 1, 128, by_column=False)
    yield sample("by column", 5, 128, by_row=False)
    yield sample("a scale a row", 5, 128, "rows")
    yield sample("one scale", 5, 128, "tensor")
    yield sample("no tokens", 0, 128)


def gradient_samples() -> Iterator[Sample]:
    """As `samples`."""

    def sample(name: str, tokens: int, intermediate: int, grain: Grain = "tiles", **parts: Any) -> Sample:
        def make(generator: Generator) -> dict[str, Tensor]:
            return {
                "upstream": normal(generator, tokens, intermediate),
                "gate_up": 3 * normal(generator, tokens, 2 * intermediate),
            }

        def call(t: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
            return _numbers_of(quantise_swiglu_gradient(t["upstream"], t["gate_up"], grain, **parts))

        constant = frozenset({"upstream", "gate_up"})
        return Sample("quantise_swiglu_gradient", name, make, call, constant=constant, tolerance=ONE_STEP)

    plain = sample("odd number of tokens", 133, 256, keep=True)
    yield plain
    yield replace(plain, dtype=torch.bfloat16, tolerance=16)
    yield replace(plain, name="slices", views=dict.fromkeys(("gate_up", "upstream"), inside_a_larger_tensor))
    yield sample("one token by row", 1, 128, by_column=False)
    yield sample("by column", 5, 128, by_row=False)
    yield sample("one scale", 5, 128, "tensor")
    yield sample("no tokens", 0, 128)
