"""Calls of `qk_norm_rotary` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal
from loong_kernels.ops.qk_norm_rotary import qk_norm_rotary


def samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides, dtypes, with and without norms, rotation of part of a head."""

    def sample(
        name: str, tokens: int, heads: int, kv_heads: int, dim: int, rotary_dim: int, norm: bool = True
    ) -> Sample:
        def make(generator: Generator) -> dict[str, Tensor]:
            angles = normal(generator, tokens, rotary_dim // 2) * 10
            tensors = {
                "qkv": normal(generator, tokens, (heads + 2 * kv_heads) * dim),
                "cos": angles.cos(),
                "sin": angles.sin(),
            }
            if norm:
                tensors |= {"q_weight": normal(generator, dim), "k_weight": normal(generator, dim)}
            return tensors

        def call(t: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
            weights = {"q_weight": t["q_weight"], "k_weight": t["k_weight"]} if norm else {}
            return qk_norm_rotary(t["qkv"], t["cos"], t["sin"], heads=heads, kv_heads=kv_heads, eps=1e-5, **weights)

        angles = frozenset({"cos", "sin"})
        return Sample("qk_norm_rotary", name, make, call, constant=angles, wider=angles)

    plain = sample("grouped heads", 3, 4, 2, 8, 8)
    special = [
        plain,
        sample("no norms", 3, 4, 2, 8, 8, norm=False),
        sample("one token", 1, 2, 1, 8, 8),
        sample("head_dim 24", 2, 3, 3, 24, 24),
        sample("part of the head", 2, 6, 2, 20, 12),
        sample("part of the head, no norms", 2, 3, 1, 20, 12, norm=False),
        sample("many heads", 1, 20, 5, 8, 4),
        sample("no tokens", 0, 2, 1, 8, 8),
    ]
    for one in special:
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "qkv", "cos", "sin")
    yield replace(plain, name="float32 weights", dtype=torch.bfloat16, wider=plain.wider | {"q_weight", "k_weight"})
