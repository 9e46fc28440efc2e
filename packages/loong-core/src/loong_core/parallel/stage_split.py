"""Which layers each pipeline stage has: by a rule that evens out the stages' work, or as given by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

_LEAST_END = 0.01
"""Cost, in layers, below which embedding and loss never count, so that layers that are over go to the middle."""


@dataclass(frozen=True)
class LayerCosts:
    """How much work the parts of a model are, in any one unit.

    Attributes:
        layers: of each layer, in order.
        embedding: of what the first stage does besides its layers.
        head: of what the last stage does besides its layers.
    """

    layers: tuple[float, ...]
    embedding: float = 0.0
    head: float = 0.0

    @staticmethod
    def equal(layers: int) -> LayerCosts:
        """Of a model about which no more is known than its number of layers."""
        return LayerCosts((1.0,) * layers)


@lru_cache(maxsize=256)
def split_evenly(costs: LayerCosts, stages: int) -> tuple[int, ...]:
    """How many layers each stage gets, so that the dearest stage is as cheap as can be.

    Every stage gets a layer. Of the splits with the cheapest dearest stage, the one whose costs spread least; of
    those, the one with the smaller stages in front, which hold the activations of more microbatches.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    if len(costs.layers) < stages:
        raise ValueError(f"{stages} stages for {len(costs.layers)} layers: every stage needs a layer")
    least = _LEAST_END * sum(costs.layers) / len(costs.layers)
    if len(set(costs.layers)) == 1:
        ends = max(costs.embedding, least), max(costs.head, least)
        return _deal_out(len(costs.layers), costs.layers[0], stages, *ends)
    until = [0.0, *accumulate(costs.layers)]

    def cost(stage: int, start: int, stop: int) -> float:
        ends = (stage == 0) * max(costs.embedding, least) + (stage == stages - 1) * max(costs.head, least)
        return until[stop] - until[start] + ends

    dearest, _ = _best(len(costs.layers), stages, cost, max, lambda each: each)
    bound = dearest * (1 + 1e-9)
    # One that is over the bound is made so dear that it is never chosen.
    squares: Callable[[float], float] = lambda each: each * each if each <= bound else float("inf")  # noqa: E731
    return _best(len(costs.layers), stages, cost, lambda one, other: one + other, squares)[1]


def _deal_out(layers: int, cost: float, stages: int, embedding: float, head: float) -> tuple[int, ...]:
    """The same split where all layers cost the same: one after the other to the stage that has least to do."""
    sizes = [1] * stages
    loads = [cost] * stages
    loads[0] += embedding
    loads[-1] += head
    for _ in range(layers - stages):
        least = min(range(stages), key=lambda stage: (loads[stage], -stage))
        sizes[least] += 1
        loads[least] += cost
    return tuple(sizes)


def stages_of_ranks(sizes: Sequence[int], pipeline: int) -> list[list[range]]:
    """Layers by `[pipeline rank][virtual stage]`: stages, of these sizes in order of the model, dealt round the ranks.

    Stage `v` of rank `p` is number `v * pipeline + p`.
    """
    starts = [0, *accumulate(sizes)]
    ranges = [range(start, start + size) for start, size in zip(starts, sizes)]
    return [ranges[rank::pipeline] for rank in range(pipeline)]


def _best(
    layers: int,
    stages: int,
    cost: Callable[[int, int, int], float],
    join: Callable[[float, float], float],
    weigh: Callable[[float], float],
) -> tuple[float, tuple[int, ...]]:
    """The least total of weighed stage costs, and the sizes that have it (the first stages small, of several).

    `best[stop]` is that of the stages so far on the layers before `stop`.
    """
    best = {stop: (weigh(cost(0, 0, stop)), (stop,)) for stop in range(1, layers + 1)}
    for stage in range(1, stages):
        best = {
            stop: min(
                (join(best[start][0], weigh(cost(stage, start, stop))), (*best[start][1], stop - start))
                for start in range(stage, stop)
            )
            for stop in range(stage + 1, layers + 1)
        }
    return best[layers]
