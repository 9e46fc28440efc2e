"""Calls of `grouped_scaled_product` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, normal
from loong_kernels.ops.grouped_scaled_product import grouped_scaled_product
from loong_kernels.ops.quantise import quantise


def samples() -> Iterator[Sample]:
    """Experts with and without rows, matrices below each other and side by side."""

    def make(generator: Generator, counts: list[int], columns: int, summed: int) -> dict[str, Tensor]:
        return {
            "x": normal(generator, sum(counts), summed),
            "weight": normal(generator, len(counts), columns, summed),
            "offsets": torch.tensor(counts).cumsum(0).to(torch.int32),
        }

    def call(t: Mapping[str, Tensor], side_by_side: bool) -> Tensor:
        left = quantise(t["x"], "tiles", by_column=False).by_row
        weight = t["weight"]
        if side_by_side:  # a product with the matrices themselves, not their transposes: backward's
            made = quantise(weight.transpose(1, 2).flatten(0, 1), "blocks", by_row=False).by_column
        else:
            made = quantise(weight.flatten(0, 1), "blocks", by_column=False).by_row
        assert left is not None
        assert made is not None
        return grouped_scaled_product(
            left, t["x"].shape[0], made, t["offsets"], t["x"].dtype, side_by_side=side_by_side
        )

    for side_by_side in (False, True):
        where = "side by side" if side_by_side else "below each other"
        for name, counts, columns, summed in (
            ("an expert without rows", [5, 0, 9, 2], 128, 256),
            ("one token", [0, 1], 128, 128),
            ("more rows than a tile", [130, 1, 260, 0, 70], 256, 128),
        ):
            yield Sample(
                "grouped_scaled_product",
                f"{name}, {where}",
                partial(make, counts=counts, columns=columns, summed=summed),
                partial(call, side_by_side=side_by_side),
                dtype=torch.bfloat16,
                constant=frozenset({"x", "weight"}),
                tolerance=4,
            )
    yield Sample(
        "grouped_scaled_product",
        "a wider result",
        partial(make, counts=[3, 4], columns=128, summed=128),
        partial(call, side_by_side=False),
        constant=frozenset({"x", "weight"}),
        tolerance=2**16,  # 8-bit products on Hopper add the elements of a tile with about 14 bits
    )
