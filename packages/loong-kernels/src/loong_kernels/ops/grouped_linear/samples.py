"""Calls of `grouped_linear` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal, summed
from loong_kernels.ops.grouped_linear import grouped_linear


def samples() -> Iterator[Sample]:
    """Experts with and without rows, odd and whole widths, strides, dtypes."""

    def make(generator: Generator, counts: list[int], wide: int, out: int) -> dict[str, Tensor]:
        return {
            "x": normal(generator, sum(counts), wide),
            "weight": normal(generator, len(counts), out, wide),
            "offsets": torch.tensor(counts).cumsum(0).to(torch.int32),
        }

    def into_a_sum(t: Mapping[str, Tensor]) -> Tensor:
        weight, total = summed(t["weight"])
        return grouped_linear(t["x"], weight, t["offsets"], weight_grad_into=total)

    def sample(name: str, counts: list[int], wide: int = 32, out: int = 16) -> Sample:
        return Sample(
            "grouped_linear",
            name,
            lambda generator: make(generator, counts, wide, out),
            lambda t: grouped_linear(t["x"], t["weight"], t["offsets"]),
            tolerance=32,
        )

    plain = sample("an expert without rows", [5, 0, 9, 2])
    special = [
        plain,
        sample("one token", [0, 1]),
        sample("one expert", [7]),
        sample("first and last without rows", [0, 3, 4, 0]),
        sample("odd widths", [3, 2], 7, 5),
        sample("many rows", [130, 1, 70], 64, 48),
    ]
    for one in special:
        yield from in_both_dtypes(one)
        yield from in_both_dtypes(replace(one, name=f"{one.name}, gradient into a sum", call=into_a_sum))
    for dtype in (torch.float32, torch.bfloat16):
        yield from laid_out(replace(plain, dtype=dtype), "x", "weight")
        yield from laid_out(replace(plain, dtype=dtype, call=into_a_sum), "x", "weight")
