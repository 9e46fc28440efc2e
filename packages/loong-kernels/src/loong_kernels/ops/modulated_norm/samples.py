"""Calls of `modulated_norm` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal
from loong_kernels.ops.modulated_norm import modulated_norm


def samples() -> Iterator[Sample]:
    """One run and many, runs of one token and of none, odd sizes, strides and dtypes."""

    def make(generator: Generator, lengths: tuple[int, ...], hidden: int) -> dict[str, Tensor]:
        runs, tokens = len(lengths), sum(lengths)
        return {
            "x": normal(generator, tokens, hidden) + 0.5,
            "scale": normal(generator, runs, hidden),
            "shift": normal(generator, runs, hidden),
            "bounds": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        }

    def sample(name: str, *lengths: int, hidden: int = 33, eps: float = 1e-6) -> Sample:
        return Sample(
            "modulated_norm",
            name,
            partial(make, lengths=lengths, hidden=hidden),
            lambda t: modulated_norm(t["x"], t["scale"], t["shift"], t["bounds"], eps),
            wider=frozenset({"scale", "shift"}),
        )

    plain = sample("runs of odd lengths", 5, 1, 7)
    for one in (
        plain,
        sample("one run", 9),
        sample("a run for each token", 1, 1, 1, 1, hidden=16),
        sample("an empty run", 3, 0, 4),
        sample("long vectors", 3, 2, hidden=1100),
        sample("many tokens", 70, 41, hidden=8),
        sample("large eps", 2, 2, eps=0.5),
    ):
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "x", "scale", "shift")
    yield replace(plain, name="modulation in bfloat16", dtype=torch.bfloat16, wider=frozenset())
