"""Calls of `adamw` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, normal
from loong_kernels.ops.adamw import adamw

NAMES = ("weight", "gradient", "exp_avg", "exp_avg_sq")


def samples() -> Iterator[Sample]:
    """First and later updates, edge sizes, scaling, rounding, moments in bfloat16."""

    def sample(name: str, *shape: int, rounded: bool = True, **options: Any) -> Sample:
        def make(generator: Generator) -> dict[str, Tensor]:
            weight, gradient, exp_avg, exp_avg_sq = normal(generator, 4, *shape).unbind(0)
            return {
                "weight": weight,
                "gradient": gradient,
                "exp_avg": exp_avg / 3,
                "exp_avg_sq": exp_avg_sq.square() / 5 + 0.01,
            }

        def call(t: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
            # Updates are in place, and inputs are to be left as they are.
            tensors = {name: t[name].clone() for name in NAMES}
            narrow = torch.empty_like(t["weight"]) if rounded else None
            settings = {"step": 7, "lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1} | options
            adamw(**tensors, rounded=narrow, **settings)  # type: ignore[arg-type]
            return (tensors["weight"], tensors["exp_avg"], tensors["exp_avg_sq"], *([] if narrow is None else [narrow]))

        return Sample("adamw", name, make, call, constant=frozenset(NAMES))

    plain = sample("odd sizes", 7, 33)
    yield from (plain, sample("one element", 1), sample("several blocks", 5000), sample("no elements", 0))
    yield sample("scaled gradient", 40, gradient_scale=1 / 3)
    yield sample("no decay, nothing rounded", 40, rounded=False, weight_decay=0.0)
    yield sample("first update", 40, step=1)
    yield replace(plain, name="moments in bfloat16", dtype=torch.bfloat16, wider=frozenset({"weight", "gradient"}))
