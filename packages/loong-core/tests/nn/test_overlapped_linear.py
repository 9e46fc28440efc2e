"""Products behind which tokens are gathered and summed are the plain ones: values, and every gradient."""

import pytest
import torch

from loong_core.nn.overlapped_linear import gathered_linear, scattered_linear
from loong_core.parallel.collectives import gather_tokens, sum_to_tokens
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_kernels import linear

IN, OUT = 6, 4


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def results(function, leaves, upstream):
    """Value and gradients of the leaves that want one."""
    leaves = [each.clone().requires_grad_(each.requires_grad) for each in leaves]
    y = function(*leaves)
    wanted = [each for each in leaves if each.requires_grad]
    return [y.detach(), *torch.autograd.grad(y, wanted, upstream)]


def compare_gathered(tokens, frozen):
    axis = ParallelContext.build(Layout(tensor=torch.distributed.get_world_size()), "cpu").tensor
    run = -(-tokens // axis.size)
    x, weight, bias = drawn(axis.rank, run, IN), drawn(10 + axis.rank, OUT, IN), drawn(20 + axis.rank, OUT)
    leaves = [each.requires_grad_(name not in frozen) for name, each in (("x", x), ("weight", weight), ("bias", bias))]
    upstream = drawn(30 + axis.rank, tokens, OUT)
    found = results(lambda x, w, b: gathered_linear(x, w, b, axis, tokens, weight_grad_into=None), leaves, upstream)
    expected = results(lambda x, w, b: linear(gather_tokens(x, axis, tokens), w, b), leaves, upstream)
    torch.testing.assert_close(found, expected)

    total = drawn(40, OUT, IN)
    into = total.clone()
    if "weight" not in frozen:
        y = gathered_linear(x, weight, None, axis, tokens, weight_grad_into=into)
        assert torch.autograd.grad(y, weight, upstream, allow_unused=True) == (None,)
        torch.testing.assert_close(into, total + expected[1 if "x" in frozen else 2])


def compare_scattered(tokens, frozen):
    axis = ParallelContext.build(Layout(tensor=torch.distributed.get_world_size()), "cpu").tensor
    run = -(-tokens // axis.size)
    x, weight = drawn(axis.rank, tokens, IN), drawn(10 + axis.rank, OUT, IN)
    leaves = [each.requires_grad_(name not in frozen) for name, each in (("x", x), ("weight", weight))]
    upstream = drawn(30 + axis.rank, run, OUT)
    found = results(lambda x, w: scattered_linear(x, w, axis, weight_grad_into=None), leaves, upstream)
    expected = results(lambda x, w: sum_to_tokens(linear(x, w), axis), leaves, upstream)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("compare", [compare_gathered, compare_scattered])
@pytest.mark.parametrize("world_size", [2, 3, 4])
@pytest.mark.parametrize("tokens", [12, 7, 2], ids=["even", "padded", "fewer tokens than some ranks"])
def test_values_and_gradients_are_those_of_the_plain_product(compare, world_size, tokens, ranks):
    ranks.run(world_size, compare, tokens, ())


@pytest.mark.parametrize("compare", [compare_gathered, compare_scattered])
@pytest.mark.parametrize("frozen", [("weight",), ("x",)])
def test_only_the_gradients_asked_for_are_computed(compare, frozen, ranks):
    ranks.run(2, compare, 7, frozen)
