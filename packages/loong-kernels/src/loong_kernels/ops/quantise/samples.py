"""Calls of `quantise` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, inside_a_larger_tensor, normal, transposed
from loong_kernels.fp8.formats import Grain, Quantised
from loong_kernels.ops.quantise import quantise


def numbers_of(made: Quantised) -> tuple[Tensor, ...]:
    """The numbers that the results stand for, and their scales, in float64."""
    operands = [each for each in made if each is not None]
    return tuple(x for each in operands for x in (each.dequantised(torch.float64), each.scales.double()))


def samples() -> Iterator[Sample]:
    """Every grain, odd numbers of rows, sizes over many magnitudes, strides, one side alone."""

    def sample(name: str, rows: int, width: int, grain: Grain, by_row: bool = True, by_column: bool = True) -> Sample:
        def make(generator: Generator) -> dict[str, Tensor]:
            sizes = torch.exp(3 * normal(generator, rows, 1)) * torch.exp(3 * normal(generator, 1, width))
            x = normal(generator, rows, width) * sizes
            if rows > 2:
                x[1], x[:, 5] = 0, 0
            return {"x": x}

        def call(t: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
            return numbers_of(quantise(t["x"], grain, by_row=by_row, by_column=by_column))

        # Scales are exact, and numbers that are rounded alike are the same: nothing is allowed.
        return Sample("quantise", name, make, call, constant=frozenset({"x"}), tolerance=0.0)

    plain = sample("tiles", 133, 256, "tiles")
    for one in (plain, sample("blocks", 256, 128, "blocks"), sample("by row", 70, 256, "rows")):
        yield from in_both_dtypes(one)
    yield from in_both_dtypes(sample("one scale", 130, 128, "tensor"))
    yield sample("one token", 1, 128, "tiles")
    yield sample("rows alone", 5, 128, "tiles", by_column=False)
    yield sample("columns alone", 5, 128, "tiles", by_row=False)
    yield sample("columns alone of rows", 5, 128, "rows", by_row=False)
    yield sample("no tokens", 0, 128, "tiles")
    yield replace(plain, name="slices", views={"x": inside_a_larger_tensor})
    yield replace(plain, name="vectors not contiguous", views={"x": transposed})
