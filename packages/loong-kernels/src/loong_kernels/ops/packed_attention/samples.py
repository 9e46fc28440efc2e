"""Calls of `packed_attention` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Make, Sample, in_both_dtypes, laid_out
from loong_kernels.ops.attention.samples import attention_inputs
from loong_kernels.ops.packed_attention import packed_attention


def samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides, dtypes, and the options of the public function."""

    def make(generator: Generator, lengths: list[int], heads: int, kv_heads: int, dim: int) -> dict[str, Tensor]:
        bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
        tokens = sum(lengths)
        return {**attention_inputs(generator, (tokens, heads, dim), (tokens, kv_heads, dim)), "cu_seqlens": bounds}

    def sample(name: str, lengths: list[int], heads: int, kv_heads: int, dim: int, **options: Any) -> Sample:
        def call(t: Mapping[str, Tensor]) -> Tensor:
            return packed_attention(t["q"], t["k"], t["v"], t["cu_seqlens"], max(lengths), **options)

        drawn: Make = partial(make, lengths=lengths, heads=heads, kv_heads=kv_heads, dim=dim)
        return Sample("packed_attention", name, drawn, call, tolerance=64)

    plain = sample("grouped heads", [5, 1, 13], 4, 2, 16)
    special = [
        plain,
        sample("one token", [1], 2, 2, 8),
        sample("one sequence", [11], 2, 1, 8),
        sample("head_dim 24", [3, 4], 3, 3, 24),
        sample("head_dim 128", [70, 2, 66], 2, 1, 128),
        sample("all of the sequence", [9, 4], 4, 1, 16, causal=False),
        sample("own scale", [2, 6], 2, 2, 32, scale=0.3),
    ]
    for one in special:
        yield from in_both_dtypes(one)
    for dtype in (torch.float32, torch.bfloat16):
        yield from laid_out(replace(plain, dtype=dtype), "q", "k", "v")
