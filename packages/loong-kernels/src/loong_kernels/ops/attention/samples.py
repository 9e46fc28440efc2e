"""Calls of `attention` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Make, Sample, in_both_dtypes, laid_out, normal
from loong_kernels.ops.attention import attention


def attention_inputs(generator: Generator, queries: tuple[int, ...], keys: tuple[int, ...]) -> dict[str, Tensor]:
    """Queries, and keys and values, of the given shapes."""
    return {"q": normal(generator, *queries), "k": normal(generator, *keys), "v": normal(generator, *keys)}


def samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides, dtypes, and the options of the public function."""

    def sample(name: str, batch: int, length: int, heads: int, kv_heads: int, dim: int, **options: Any) -> Sample:
        make: Make = partial(attention_inputs, queries=(batch, length, heads, dim), keys=(batch, length, kv_heads, dim))
        return Sample("attention", name, make, lambda t: attention(t["q"], t["k"], t["v"], **options), tolerance=64)

    plain = sample("grouped heads", 2, 19, 4, 2, 16)
    special = [
        plain,
        sample("one token", 1, 1, 2, 2, 8),
        sample("head_dim 24", 1, 7, 3, 3, 24),
        sample("head_dim 20", 1, 6, 2, 1, 20),
        sample("head_dim 128", 1, 130, 2, 1, 128),
        sample("all of the sequence", 2, 9, 4, 1, 16, causal=False),
        sample("own scale", 1, 12, 2, 2, 32, scale=0.3),
    ]
    for one in special:
        yield from in_both_dtypes(one)
    for dtype in (torch.float32, torch.bfloat16):
        yield from laid_out(replace(plain, dtype=dtype), "q", "k", "v")
