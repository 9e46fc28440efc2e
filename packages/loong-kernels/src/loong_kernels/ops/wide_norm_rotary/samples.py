"""Calls of `wide_norm_rotary` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal
from loong_kernels.ops.wide_norm_rotary import wide_norm_rotary


def samples() -> Iterator[Sample]:
    """Edge sizes, head sizes that are no power of two, strides and dtypes."""

    def make(generator: Generator, tokens: int, heads: int, head_dim: int) -> dict[str, Tensor]:
        angles = 3 * normal(generator, tokens, head_dim // 2)
        return {
            "x": normal(generator, tokens, heads * head_dim),
            "weight": normal(generator, heads * head_dim),
            "cos": angles.cos(),
            "sin": angles.sin(),
        }

    def sample(name: str, tokens: int, heads: int, head_dim: int, eps: float = 1e-6) -> Sample:
        return Sample(
            "wide_norm_rotary",
            name,
            partial(make, tokens=tokens, heads=heads, head_dim=head_dim),
            lambda t: wide_norm_rotary(t["x"], t["weight"], t["cos"], t["sin"], eps),
            wider=frozenset({"cos", "sin"}),
            constant=frozenset({"cos", "sin"}),
        )

    plain = sample("three heads", 7, 3, 12)
    for one in (
        plain,
        sample("one token, one head", 1, 1, 2),
        sample("a head as Wan has it", 5, 2, 128),
        sample("many tokens", 130, 1, 4),
        sample("large eps", 3, 2, 8, eps=0.5),
    ):
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "x", "weight", "cos", "sin")
    yield replace(plain, name="float32 weight", dtype=torch.bfloat16, wider=frozenset({"weight", "cos", "sin"}))
