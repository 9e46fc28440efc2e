"""Calls of `rotary` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal
from loong_kernels.ops.rotary import rotary


def samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides, dtypes, and the options of the public function."""

    def make(
        generator: Generator, tokens: int, heads: int, kv_heads: int, dim: int, rotary_dim: int
    ) -> dict[str, Tensor]:
        angles = normal(generator, tokens, rotary_dim // 2) * 10
        q, k = normal(generator, tokens, heads, dim), normal(generator, tokens, kv_heads, dim)
        return {"q": q, "k": k, "cos": angles.cos(), "sin": angles.sin()}

    def sample(name: str, *sizes: int) -> Sample:
        return Sample(
            "rotary",
            name,
            lambda generator: make(generator, *sizes),
            lambda t: rotary(t["q"], t["k"], t["cos"], t["sin"]),
            constant=frozenset({"cos", "sin"}),
            wider=frozenset({"cos", "sin"}),
        )

    plain = sample("grouped heads", 5, 4, 2, 16, 16)
    special = [
        plain,
        sample("one token", 1, 2, 1, 8, 8),
        sample("head_dim 24", 3, 3, 3, 24, 24),
        sample("part of the head", 4, 6, 2, 20, 12),
        sample("more than 16 heads", 2, 20, 5, 8, 4),
    ]
    for one in special:
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "q", "k", "cos", "sin")
    narrow = replace(plain, name="narrow angles", dtype=torch.bfloat16, wider=frozenset())
    yield narrow
