"""Taking tokens to their experts and back: three ops around the experts' products, none of which waits for the device.

`order_by_expert` turns the router's choices into an `ExpertOrder`; `permute_to_experts` lays a copy of each token into
a row of each expert it chose; `combine_from_experts` brings the results back and adds them up by their weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from loong_kernels.ops.expert_permutation.order import ExpertOrder, order_by_expert_reference
from loong_kernels.ops.expert_permutation.reference import combine_from_experts_reference, permute_to_experts_reference
from loong_kernels.registry import REGISTRY, Implementation
from loong_kernels.triton_toolchain import register_triton, unsupported_dtype

__all__ = ["ExpertOrder", "combine_from_experts", "order_by_expert", "permute_to_experts"]

_SAMPLES = "loong_kernels.ops.expert_permutation.samples:"
ORDER = REGISTRY.define("order_by_expert", "the router's choices sorted by expert", f"{_SAMPLES}order_samples")
PERMUTE = REGISTRY.define(
    "permute_to_experts",
    "a copy of each token for each expert it chose, sorted by expert",
    f"{_SAMPLES}permute_samples",
)
COMBINE = REGISTRY.define(
    "combine_from_experts", "each token's expert results added up by their weights", f"{_SAMPLES}combine_samples"
)


class OrderCase(NamedTuple):
    """Shape class of `order_by_expert`."""

    device: str
    experts: int
    top_k: int
    capacity: bool


class PermutationCase(NamedTuple):
    """Shape class of `permute_to_experts` and `combine_from_experts`."""

    device: str
    dtype: torch.dtype
    hidden: int
    top_k: int
    capacity: bool


def order_by_expert(
    choices: Tensor, experts: int, *, capacity: int | None = None, priority: Tensor | None = None
) -> ExpertOrder:
    """Sort the router's choices by expert; choices of one expert stay in the order of their tokens.

    Args:
        choices: `[tokens, top_k]` int64, the experts of each token, each at most once.
        experts: how many there are.
        capacity: rows that every expert has. What exceeds them is dropped, and rows without a token stay empty. None:
            each expert has as many rows as it was chosen, and nothing is dropped.
        priority: `[tokens, top_k]` floats; with a capacity, an expert keeps its choices of highest priority. None:
            those of the first tokens.

    Returns:
        the order, on the device of `choices`.

    Raises:
        ValueError: `priority` without `capacity`, or a shape that does not fit.
    """
    if choices.ndim != 2 or (priority is not None and priority.shape != choices.shape):
        shapes = list(choices.shape), None if priority is None else list(priority.shape)
        raise ValueError(f"order_by_expert wants choices [tokens, top_k] and priority alike; got {shapes}")
    if priority is not None and capacity is None:
        raise ValueError("order_by_expert takes a priority only with a capacity: otherwise nothing is dropped")
    case = OrderCase(choices.device.type, experts, choices.shape[1], capacity is not None)
    return ORDER.serve(case)(choices, experts, capacity, priority)


def permute_to_experts(x: Tensor, order: ExpertOrder) -> Tensor:
    """Copy each token to its experts' rows.

    Args:
        x: `[tokens, hidden]`, any strides.
        order: of the tokens' choices.

    Returns:
        `[rows, hidden]`, sorted by expert, zero in rows without a token. The gradient of `x` is the sum over a token's
        rows, accumulated in float32 (float64 for float64).
    """
    _check_tokens("permute_to_experts", x, order)
    if x.shape[0] == 0 and order.has_gaps:
        # No token to copy, only empty rows. They still depend on `x`: ranks of a layout must run the same backward.
        return torch.cat([x, x.new_zeros(order.choice_of_row.shape[0], x.shape[1])])
    return PERMUTE.serve(_permutation_case(x, order))(x, order)


def combine_from_experts(y: Tensor, weights: Tensor, order: ExpertOrder) -> Tensor:
    """Add up what a token's experts made of it, by the router's weights.

    Args:
        y: `[rows, hidden]`, the experts' results.
        weights: `[tokens, top_k]` floats.
        order: of the tokens' choices.

    Returns:
        `[tokens, hidden]` in `y.dtype`, accumulated in float32 (float64 for float64) and rounded once; a dropped choice
        adds nothing, and its weight gets no gradient.
    """
    _check_tokens("combine_from_experts", weights, order)
    if weights.shape != order.row_of_choice.shape or y.shape[0] != order.choice_of_row.shape[0]:
        raise ValueError(
            f"combine_from_experts wants y [{order.choice_of_row.shape[0]}, hidden] and weights "
            f"{list(order.row_of_choice.shape)}; got {list(y.shape)} and {list(weights.shape)}"
        )
    return COMBINE.serve(_permutation_case(y, order))(y, weights, order)


def _check_tokens(op: str, x: Tensor, order: ExpertOrder) -> None:
    if x.ndim != 2 or x.shape[0] != order.row_of_choice.shape[0]:
        raise ValueError(f"{op}: an order of {order.row_of_choice.shape[0]} tokens, but a tensor {list(x.shape)}")


def _permutation_case(x: Tensor, order: ExpertOrder) -> PermutationCase:
    return PermutationCase(x.device.type, x.dtype, x.shape[1], order.row_of_choice.shape[1], order.has_gaps)


_GATHERS = "loong_kernels.ops.expert_permutation.gathers:"
REGISTRY.register(Implementation("reference", ORDER.name, ("*",), order_by_expert_reference))
REGISTRY.register(Implementation("reference", PERMUTE.name, ("*",), permute_to_experts_reference))
REGISTRY.register(Implementation("reference", COMBINE.name, ("*",), combine_from_experts_reference))
REGISTRY.register(Implementation("gathers", PERMUTE.name, ("*",), f"{_GATHERS}permute_by_gathers", priority=10))
REGISTRY.register(Implementation("gathers", COMBINE.name, ("*",), f"{_GATHERS}combine_by_gathers", priority=10))


def _triton_supports(case: PermutationCase) -> str | None:
    return unsupported_dtype(case.dtype)


_TRITON = "loong_kernels.ops.expert_permutation.triton_kernels:"
register_triton(REGISTRY, PERMUTE.name, f"{_TRITON}permute_triton", _triton_supports)
register_triton(REGISTRY, COMBINE.name, f"{_TRITON}combine_triton", _triton_supports)
