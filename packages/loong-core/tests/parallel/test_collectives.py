"""Communication has the value and the gradient of the one-rank computation it stands for."""

import pytest
import torch
import torch.distributed as dist

from loong_core.parallel.collectives import (
    copy_to_all,
    gather_features,
    gather_tokens,
    own_tokens,
    sum_over,
    sum_to_tokens,
)
from loong_core.parallel.context import ALONE, ParallelContext
from loong_core.parallel.layout import Layout

TOKENS = 5


def rows(seed, count=TOKENS, width=4):
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def value_and_gradient(function, x, upstream):
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    y.backward(upstream)
    return y.detach(), leaf.grad


def on_rank():
    """Values and gradients here; what ranks hold of their own is `rows(rank)`, what is equal `rows(9)`."""
    axis = ParallelContext.build(Layout(tensor=2), "cpu").tensor
    rank = dist.get_rank()
    return {
        "copy": value_and_gradient(lambda x: copy_to_all(x, axis), rows(9), rows(rank)),
        "sum": value_and_gradient(lambda x: sum_over(x, axis), rows(rank), rows(9)),
        "own tokens": value_and_gradient(lambda x: own_tokens(x, axis), rows(9), rows(rank, 3)),
        "gather tokens": value_and_gradient(lambda x: gather_tokens(x, axis, TOKENS), rows(rank, 3), rows(rank)),
        "sum to tokens": value_and_gradient(lambda x: sum_to_tokens(x, axis), rows(rank), rows(rank, 3)),
        "gather features": value_and_gradient(lambda x: gather_features(x, axis), rows(rank), rows(9, width=8)),
    }


@pytest.fixture(scope="module")
def results(ranks):
    return ranks.run(2, on_rank)


def check(results, name, values, gradients):
    for (value, gradient), expected_value, expected_gradient in zip(
        [found[name] for found in results], values, gradients, strict=True
    ):
        torch.testing.assert_close(value, expected_value)
        torch.testing.assert_close(gradient, expected_gradient)


def test_a_copied_value_gathers_the_gradients_of_all_ranks(results):
    check(results, "copy", [rows(9)] * 2, [rows(0) + rows(1)] * 2)


def test_a_sum_hands_its_gradient_to_every_rank(results):
    check(results, "sum", [rows(0) + rows(1)] * 2, [rows(9)] * 2)


def test_gathered_tokens_get_the_sum_of_gradients_and_padding_gets_none(results):
    gathered = torch.cat([rows(0, 3), rows(1, 3)])[:TOKENS]
    total = torch.cat([rows(0) + rows(1), torch.zeros(1, 4, dtype=torch.float64)])
    check(results, "gather tokens", [gathered] * 2, [total[:3], total[3:]])


def test_a_rank_takes_its_own_tokens_and_the_gradient_is_of_these(results):
    none = torch.zeros(3, 4, dtype=torch.float64)
    padded = torch.cat([rows(9), none[:1]])
    gradients = [torch.cat([rows(0, 3), none])[:TOKENS], torch.cat([none, rows(1, 3)])[:TOKENS]]
    check(results, "own tokens", [padded[:3], padded[3:]], gradients)


def test_summed_tokens_are_split_and_their_gradients_joined(results):
    total = torch.cat([rows(0) + rows(1), torch.zeros(1, 4, dtype=torch.float64)])
    joined = torch.cat([rows(0, 3), rows(1, 3)])[:TOKENS]
    check(results, "sum to tokens", [total[:3], total[3:]], [joined] * 2)


def test_gathered_features_keep_their_own_gradient(results):
    upstream = rows(9, width=8)
    check(results, "gather features", [torch.cat([rows(0), rows(1)], dim=1)] * 2, [upstream[:, :4], upstream[:, 4:]])


def test_over_one_rank_nothing_is_done():
    x = rows(0)
    assert copy_to_all(x, ALONE) is sum_over(x, ALONE) is gather_tokens(x, ALONE, TOKENS) is own_tokens(x, ALONE) is x
    assert sum_to_tokens(x, ALONE) is gather_features(x, ALONE) is x
