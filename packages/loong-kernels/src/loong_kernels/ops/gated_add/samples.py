"""Calls of `gated_add` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal
from loong_kernels.ops.gated_add import gated_add


def samples() -> Iterator[Sample]:
    """One run and many, runs of one token and of none, odd sizes, strides and dtypes."""

    def make(generator: Generator, lengths: tuple[int, ...], hidden: int) -> dict[str, Tensor]:
        tokens = sum(lengths)
        return {
            "stream": normal(generator, tokens, hidden),
            "branch": normal(generator, tokens, hidden),
            "gate": normal(generator, len(lengths), hidden),
            "bounds": torch.tensor([0, *lengths]).cumsum(0).to(torch.int32),
        }

    def sample(name: str, *lengths: int, hidden: int = 33) -> Sample:
        return Sample(
            "gated_add",
            name,
            partial(make, lengths=lengths, hidden=hidden),
            lambda t: gated_add(t["stream"], t["branch"], t["gate"], t["bounds"]),
            wider=frozenset({"gate"}),
        )

    plain = sample("runs of odd lengths", 5, 1, 7)
    for one in (
        plain,
        sample("one run", 9),
        sample("a run for each token", 1, 1, 1, 1, hidden=16),
        sample("an empty run", 3, 0, 4),
        sample("long vectors", 3, 2, hidden=1100),
        sample("many tokens", 70, 41, hidden=8),
    ):
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "stream", "branch", "gate")
    yield replace(plain, name="stream in float32", dtype=torch.bfloat16, wider=frozenset({"stream", "gate"}))
