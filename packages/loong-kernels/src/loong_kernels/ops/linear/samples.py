"""Calls of `linear` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal, summed
from loong_kernels.ops.linear import linear


def samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides, dtypes, with the weight's gradient returned and added to a sum."""

    def make(generator: Generator, tokens: int, wide: int, out: int, bias: bool) -> dict[str, Tensor]:
        tensors = {"x": normal(generator, tokens, wide), "weight": normal(generator, out, wide)}
        return tensors | ({"bias": normal(generator, out)} if bias else {})

    def plain(t: Mapping[str, Tensor]) -> Tensor:
        return linear(t["x"], t["weight"], t.get("bias"))

    def into_a_sum(t: Mapping[str, Tensor]) -> Tensor:
        weight, total = summed(t["weight"])
        return linear(t["x"], weight, t.get("bias"), weight_grad_into=total)

    def sample(name: str, tokens: int, wide: int, out: int, bias: bool = False) -> Sample:
        made = partial(make, tokens=tokens, wide=wide, out=out, bias=bias)
        return Sample("linear", name, made, plain, tolerance=32)

    odd = sample("odd sizes", 7, 33, 21)
    for one in (odd, sample("one token", 1, 16, 8), sample("bias", 5, 24, 40, True), sample("large", 130, 64, 72)):
        yield from in_both_dtypes(one)
        yield from in_both_dtypes(replace(one, name=f"{one.name}, gradient into a sum", call=into_a_sum))
    yield from laid_out(replace(odd, call=into_a_sum), "x", "weight")
    yield replace(odd, name="no tokens", make=partial(make, tokens=0, wide=8, out=4, bias=False), call=into_a_sum)
    yield replace(odd, name="bfloat16 laid out", dtype=torch.bfloat16, call=into_a_sum)
