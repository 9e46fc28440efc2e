"""Calls of the three expert permutation ops that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal
from loong_kernels.ops.expert_permutation import (
    ExpertOrder,
    combine_from_experts,
    order_by_expert,
    permute_to_experts,
)


@dataclass(frozen=True)
class _Routing:
    """How many tokens choose how many of how many experts."""

    name: str
    tokens: int
    experts: int
    top_k: int
    capacity: int | None = None
    prioritised: bool = False

    @property
    def rows(self) -> int:
        return self.tokens * self.top_k if self.capacity is None else self.experts * self.capacity

    def drawn(self, generator: Generator) -> dict[str, Tensor]:
        scores, chosen = torch.rand(self.tokens, self.experts, generator=generator).topk(self.top_k)
        return {"choices": chosen, "priority": scores.double()} if self.prioritised else {"choices": chosen}

    def order(self, given: Mapping[str, Tensor]) -> ExpertOrder:
        return order_by_expert(given["choices"], self.experts, capacity=self.capacity, priority=given.get("priority"))


_ROUTINGS = [
    _Routing("odd sizes", 17, 6, 3),
    _Routing("one token", 1, 5, 2),
    _Routing("experts without a row", 2, 40, 1),
    _Routing("capacity", 17, 6, 3, capacity=3),
    _Routing("capacity by priority", 17, 6, 3, capacity=3, prioritised=True),
]
_HIDDEN = 10


def order_samples() -> Iterator[Sample]:
    """With and without a capacity; the results are integers."""

    def sample(routing: _Routing) -> Sample:
        def call(given: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
            order = routing.order(given)
            return order.offsets, order.counts, order.choice_of_row, order.row_of_choice

        return Sample("order_by_expert", routing.name, routing.drawn, call, constant=frozenset({"priority"}))

    for routing in _ROUTINGS:
        yield sample(routing)


def permute_samples() -> Iterator[Sample]:
    """With and without a capacity, strides, dtypes."""

    def sample(routing: _Routing) -> Sample:
        return Sample(
            "permute_to_experts",
            routing.name,
            lambda generator: {**routing.drawn(generator), "x": normal(generator, routing.tokens, _HIDDEN)},
            lambda given: permute_to_experts(given["x"], routing.order(given)),
            constant=frozenset({"priority"}),
            wider=frozenset({"priority"}),
        )

    for routing in _ROUTINGS:
        yield from in_both_dtypes(sample(routing))
    yield from laid_out(sample(_ROUTINGS[0]), "x")


def combine_samples() -> Iterator[Sample]:
    """With and without a capacity, strides, dtypes."""

    def sample(routing: _Routing) -> Sample:
        def make(generator: Generator) -> dict[str, Tensor]:
            y, weights = normal(generator, routing.rows, _HIDDEN), normal(generator, routing.tokens, routing.top_k)
            return {**routing.drawn(generator), "y": y, "weights": weights}

        return Sample(
            "combine_from_experts",
            routing.name,
            make,
            lambda given: combine_from_experts(given["y"], given["weights"], routing.order(given)),
            constant=frozenset({"priority"}),
            wider=frozenset({"priority", "weights"}),
        )

    for routing in _ROUTINGS:
        yield from in_both_dtypes(sample(routing))
    yield from laid_out(sample(_ROUTINGS[0]), "y", "weights")
    yield replace(sample(_ROUTINGS[0]), name="narrow weights", dtype=torch.bfloat16, wider=frozenset())
