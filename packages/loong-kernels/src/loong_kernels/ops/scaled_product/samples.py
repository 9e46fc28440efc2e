"""Calls of `scaled_product` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, normal
from loong_kernels.fp8.formats import Grain, Operand
from loong_kernels.ops.quantise import quantise
from loong_kernels.ops.scaled_product import scaled_product


def by_row(x: Tensor, grain: Grain) -> Operand:
    """`x` for a product that sums over its width."""
    made = quantise(x, grain, by_column=False).by_row
    assert made is not None
    return made


def samples() -> Iterator[Sample]:
    """Every pair of grains, sizes that cross tiles, padding, with and without a sum."""

    def make(generator: Generator, rows: int, columns: int, summed: int) -> dict[str, Tensor]:
        sizes = torch.exp(2 * normal(generator, 1, summed // 128)).repeat_interleave(128, 1)
        return {"left": normal(generator, rows, summed) * sizes, "right": normal(generator, columns, summed)}

    def sample(name: str, grains: tuple[Grain, Grain], sizes: tuple[int, int, int]) -> Sample:
        def call(t: Mapping[str, Tensor]) -> Tensor:
            made = scaled_product(by_row(t["left"], grains[0]), by_row(t["right"], grains[1]), t["left"].dtype)
            assert made is not None
            return made

        # 8-bit products on Hopper add the elements of a tile with about 14 bits.
        made = partial(make, rows=sizes[0], columns=sizes[1], summed=sizes[2])
        return Sample(
            "scaled_product", name, made, call, dtype=torch.bfloat16, constant=frozenset({"left", "right"}), tolerance=4
        )

    def into_a_sum(grains: tuple[Grain, Grain], t: Mapping[str, Tensor]) -> Tensor:
        left, right = by_row(t["left"], grains[0]), by_row(t["right"], grains[1])
        dtype = torch.promote_types(t["left"].dtype, torch.float32)
        total = torch.full((left.values.shape[0], right.values.shape[0]), 2.0, dtype=dtype, device=t["left"].device)
        assert scaled_product(left, right, t["left"].dtype, total=total) is None
        return total

    pairs: list[tuple[Grain, Grain]] = [("tiles", "blocks"), ("tiles", "tiles"), ("rows", "rows"), ("tensor", "tensor")]
    for grains in pairs:
        name = f"{grains[0]} by {grains[1]}"
        plain = sample(name, grains, (130, 256, 384))
        yield plain
        yield replace(plain, name=f"{name}, into a sum", call=partial(into_a_sum, grains))
        yield replace(plain, name=f"{name}, a wider result", dtype=torch.float32, tolerance=2**16)
        yield sample(f"{name}, many tiles", grains, (384, 128, 1664))
    yield sample("no tokens", ("tiles", "blocks"), (0, 128, 128))
