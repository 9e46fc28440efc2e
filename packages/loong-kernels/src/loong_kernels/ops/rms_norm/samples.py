"""Calls of `rms_norm` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, inside_a_larger_tensor, laid_out, normal
from loong_kernels.ops.rms_norm import rms_norm


def samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides, dtypes, and the options of the public function."""

    def make(generator: Generator, shape: tuple[int, ...]) -> dict[str, Tensor]:
        return {"x": normal(generator, *shape), "weight": normal(generator, shape[-1])}

    def sample(name: str, *shape: int, eps: float = 1e-5) -> Sample:
        return Sample("rms_norm", name, partial(make, shape=shape), lambda t: rms_norm(t["x"], t["weight"], eps))

    plain = sample("odd sizes", 7, 33)
    special = [
        plain,
        sample("one token", 1, 64),
        sample("three elements", 4, 3),
        sample("a vector", 40),
        sample("heads", 5, 3, 24),
        sample("four dimensions", 2, 3, 2, 20),
        sample("long", 3, 2500),
        sample("large eps", 4, 16, eps=0.5),
    ]
    for one in special:
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "x")
    yield replace(sample("heads sliced", 5, 3, 24), views={"x": inside_a_larger_tensor})
    yield replace(plain, name="float32 weight", dtype=torch.bfloat16, wider=frozenset({"weight"}))
    silent = replace(plain, name="a zero vector")
    yield replace(silent, make=lambda generator: {**plain.make(generator), "x": torch.zeros(2, 33).double()})
