"""Calls of `embedding` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal, summed
from loong_kernels.ops.embedding import embedding


def samples() -> Iterator[Sample]:
    """Ids that repeat a little and much, rows elsewhere, with the gradient returned and added to a sum."""

    def sample(
        name: str, tokens: int, rows: int, hidden: int, vocab_start: int | None = None, into: bool = True
    ) -> Sample:
        def make(generator: Generator) -> dict[str, Tensor]:
            wanted = rows if vocab_start is None else 2 * rows + vocab_start
            return {
                "ids": torch.randint(0, wanted, (tokens,), generator=generator),
                "weight": normal(generator, rows, hidden),
            }

        def call(t: dict[str, Tensor]) -> Tensor:
            if not into:
                return embedding(t["ids"], t["weight"], vocab_start=vocab_start)
            weight, total = summed(t["weight"])
            return embedding(t["ids"], weight, vocab_start=vocab_start, weight_grad_into=total)

        return Sample("embedding", name, make, call, tolerance=32)  # type: ignore[arg-type]

    plain = sample("ids that repeat", 30, 7, 33)
    special = [
        plain,
        sample("gradient returned", 9, 12, 8, into=False),
        sample("one token", 1, 5, 16),
        sample("one id many times", 70, 1, 20),
        sample("no tokens", 0, 5, 8),
        sample("rows elsewhere", 40, 6, 24, vocab_start=5),
        sample("rows elsewhere, gradient returned", 20, 6, 8, vocab_start=3, into=False),
    ]
    for one in special:
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "weight")
    yield replace(sample("several blocks of columns", 6, 4, 700), dtype=torch.bfloat16)
