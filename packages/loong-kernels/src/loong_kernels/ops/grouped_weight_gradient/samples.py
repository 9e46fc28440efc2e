"""Calls of `grouped_weight_gradient` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, normal
from loong_kernels.ops.grouped_weight_gradient import grouped_weight_gradient


def samples() -> Iterator[Sample]:
    """Experts with and without rows, odd and whole widths, returned and added to a sum."""

    def make(generator: Generator, counts: list[int], wide: int, out: int) -> dict[str, Tensor]:
        return {
            "upstream": normal(generator, sum(counts), out),
            "x": normal(generator, sum(counts), wide),
            "offsets": torch.tensor(counts).cumsum(0).to(torch.int32),
        }

    def returned(t: Mapping[str, Tensor]) -> Tensor:
        made = grouped_weight_gradient(t["upstream"], t["x"], t["offsets"], total=None)
        assert made is not None
        return made

    def into_a_sum(t: Mapping[str, Tensor]) -> Tensor:
        shape = (t["offsets"].shape[0], t["upstream"].shape[1], t["x"].shape[1])
        dtype = torch.promote_types(t["x"].dtype, torch.float32)
        total = torch.full(shape, 2.0, dtype=dtype, device=t["x"].device)
        assert grouped_weight_gradient(t["upstream"], t["x"], t["offsets"], total=total) is None
        return total

    for name, counts, wide, out in (
        ("an expert without rows", [5, 0, 9, 2], 32, 16),
        ("one token", [0, 1], 32, 16),
        ("odd widths", [3, 2], 7, 5),
        ("many rows", [130, 1, 70], 272, 144),
    ):
        made = partial(make, counts=counts, wide=wide, out=out)
        plain = Sample(
            "grouped_weight_gradient", name, made, returned, constant=frozenset({"upstream", "x"}), tolerance=32
        )
        for dtype in (torch.float32, torch.bfloat16):
            yield replace(plain, dtype=dtype)
            # The sum is float32 for both dtypes, and is held to that.
            yield replace(plain, name=f"{name}, into a sum", call=into_a_sum, dtype=dtype)
