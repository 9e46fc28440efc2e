"""Calls of `add_rms_norm` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal
from loong_kernels.ops.add_rms_norm import add_rms_norm


def samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides, dtypes, and one of the two results used alone."""

    def sample(name: str, tokens: int, hidden: int, eps: float = 1e-5) -> Sample:
        def make(generator: Generator) -> dict[str, Tensor]:
            x, residual = normal(generator, 2, tokens, hidden).unbind(0)
            return {"x": x, "residual": residual, "weight": normal(generator, hidden)}

        def call(t: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
            return add_rms_norm(t["x"], t["residual"], t["weight"], eps)

        return Sample("add_rms_norm", name, make, call)

    plain = sample("odd sizes", 7, 33)
    for one in (plain, sample("one token", 1, 64), sample("three elements", 4, 3), sample("long", 3, 2500)):
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "x", "residual")
    yield replace(plain, name="large eps", call=lambda t: add_rms_norm(t["x"], t["residual"], t["weight"], 0.5))
    yield replace(plain, name="float32 weight", dtype=torch.bfloat16, wider=frozenset({"weight"}))
    yield replace(plain, name="normalised alone", call=lambda t: plain.call(t)[0])
    yield replace(sample("many tokens", 150, 16), dtype=torch.bfloat16)
