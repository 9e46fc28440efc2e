"""Calls of `linear_cross_entropy` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal, summed
from loong_kernels.ops.linear_cross_entropy import linear_cross_entropy

IGNORED = -100


def samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides, dtypes, and the options of the public function."""

    def make(generator: Generator, sizes: tuple[int, int, int], ignored: float) -> dict[str, Tensor]:
        tokens, vocabulary, hidden = sizes
        labels = torch.randint(0, vocabulary - 5, (tokens,), generator=generator)
        labels[torch.rand(tokens, generator=generator) < ignored] = IGNORED
        return {
            "hidden": normal(generator, tokens, hidden),
            "weight": normal(generator, vocabulary, hidden) / 3,
            "labels": labels,
        }

    def sample(
        name: str, sizes: tuple[int, int, int], ignored: float = 0.2, into: bool = False, **options: Any
    ) -> Sample:
        def call(t: Mapping[str, Tensor]) -> Tensor:
            weight, total = summed(t["weight"]) if into else (t["weight"], None)
            return linear_cross_entropy(t["hidden"], weight, t["labels"], weight_grad_into=total, **options)

        return Sample("linear_cross_entropy", name, partial(make, sizes=sizes, ignored=ignored), call, tolerance=32)

    plain = sample("odd sizes", (7, 101, 24), chunk_size=64)
    special = [
        plain,
        sample("one token", (1, 50, 8), ignored=0.0),
        sample("one chunk", (5, 70, 16)),
        sample("all labels ignored", (3, 40, 8), ignored=1.1),
        sample("padding rows", (6, 67, 16), chunk_size=32, valid_vocab=62),
        sample("soft cap", (6, 67, 16), chunk_size=40, softcap=2.0),
    ]
    # Without a chunk size an implementation may choose to keep what it computes from the logits.
    whole = sample("odd sizes in one chunk", (7, 101, 24), into=True)
    special += [
        whole,
        sample("gradient into a sum", (7, 101, 24), into=True, chunk_size=64),
        sample("padding rows in one chunk", (6, 67, 16), into=True, valid_vocab=62),
        sample("soft cap in one chunk", (6, 67, 16), softcap=2.0),
    ]
    for one in special:
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "hidden", "weight", "labels")
    yield from laid_out(whole, "hidden", "weight", "labels")
    # Errors of the logits themselves grow with their size.
    yield replace(sample("far larger logits behind", (3, 4400, 8)), make=_far_larger_logits, tolerance=256)


def _far_larger_logits(generator: Generator) -> dict[str, Tensor]:
    """Scores of some late rows are above those of the first by more than the exponential's range allows to ignore."""
    weight = normal(generator, 4400, 8) / 3
    weight[4200:4210] *= 100
    return {"hidden": normal(generator, 3, 8), "weight": weight, "labels": torch.tensor([4203, 5, 4300])}
