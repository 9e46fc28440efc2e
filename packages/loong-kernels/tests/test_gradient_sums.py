"""Weight gradients that ops add to a running sum: nothing is counted twice, and nothing is rounded on the way."""

import pytest
import torch
from torch.nn import functional as F

from loong_kernels import embedding, linear, linear_cross_entropy, registry

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape, dtype=torch.float64):
    drawn = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)
    return drawn.to(DEVICE, dtype).requires_grad_()


def sum_for(weight, start=0.0):
    wide = torch.promote_types(weight.dtype, torch.float32)
    return torch.full(weight.shape, start, dtype=wide, device=weight.device)


CALLS = {
    "linear": lambda x, weight, total: linear(x, weight, weight_grad_into=total),
    "embedding": lambda x, weight, total: embedding(
        torch.tensor([3, 0, 3], device=DEVICE), weight, weight_grad_into=total
    ),
    "linear_cross_entropy": lambda x, weight, total: linear_cross_entropy(
        x, weight, torch.tensor([1, 4, -100, 2, 0], device=DEVICE), weight_grad_into=total
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_weight_gets_no_gradient_besides_what_the_sum_gets(call):
    x, weight = random(5, 6), random(7, 6)
    total = sum_for(weight, 2.0)
    call(x, weight, total).square().sum().backward()
    assert weight.grad is None
    expected = weight.detach().clone().requires_grad_()
    call(x, expected, None).square().sum().backward()
    torch.testing.assert_close(total, expected.grad + 2)


def test_each_use_of_a_shared_weight_counts_once_however_it_returns_its_gradient():
    x, weight = random(5, 6), random(7, 6)
    ids, labels = torch.tensor([2, 2, 6, 0, 1], device=DEVICE), torch.arange(5, device=DEVICE)
    total = sum_for(weight)

    def loss(table, into):
        hidden = embedding(ids, table, weight_grad_into=into) + F.linear(x, table[:6])
        hidden = linear(hidden, table, weight_grad_into=into)[:, :6]
        return linear_cross_entropy(hidden, table, labels, weight_grad_into=into).sum()

    loss(weight, total).backward()
    (expected,) = torch.autograd.grad(loss(weight, None), weight)
    torch.testing.assert_close(total + weight.grad, expected)  # grad: what F.linear returned


def test_gradients_of_several_microbatches_add_up_unrounded():
    weight = random(8, 64, dtype=torch.bfloat16)
    batches = [random(32 + index, 64, dtype=torch.bfloat16) for index in range(20)]
    total, exact = sum_for(weight), sum_for(weight).double()
    for x in batches:
        linear(x, weight, weight_grad_into=total).sum().backward()
        exact += x.detach().double().sum(0)
    torch.testing.assert_close(total.double(), exact, rtol=1e-5, atol=1e-4)


def test_a_frozen_weight_adds_nothing_to_the_sum():
    x, weight = random(5, 6), random(7, 6).detach()
    total = sum_for(weight)
    linear(x, weight, weight_grad_into=total).sum().backward()
    assert total.abs().max() == 0
    torch.testing.assert_close(x.grad, weight.sum(0).expand(5, 6))


def test_recomputed_layers_add_their_gradient_once():
    x, weight = random(5, 6), random(7, 6)
    total = sum_for(weight)
    y = torch.utils.checkpoint.checkpoint(lambda x: linear(x, weight, weight_grad_into=total), x, use_reentrant=False)
    y.sum().backward()
    torch.testing.assert_close(total, x.detach().sum(0).expand(7, 6))


@pytest.mark.parametrize("total", [torch.zeros(6, 7), torch.zeros(7, 6, dtype=torch.bfloat16)])
def test_a_sum_that_cannot_take_the_gradient_is_named(total):
    with pytest.raises(ValueError, match=r"linear adds the gradient of a weight \[7, 6\]"):
        linear(torch.zeros(5, 6), torch.zeros(7, 6), weight_grad_into=total)


@pytest.mark.parametrize("implementation", ["chunked", "kept_torch"])
def test_a_nearly_certain_prediction_keeps_its_small_gradient_in_bfloat16(implementation):
    # p(label) = 1 - 3e-4: what is left of softmax - 1 must not drown in the rounding of 1.
    hidden = torch.tensor([[8.0, 0.0]], dtype=torch.bfloat16, device=DEVICE, requires_grad=True)
    weight = torch.tensor([[1.0, 0.5], [0.0, 1.0]], dtype=torch.bfloat16, device=DEVICE)
    label = torch.tensor([0], device=DEVICE)
    with registry.using({"linear_cross_entropy": implementation}):
        linear_cross_entropy(hidden, weight, label).sum().backward()
    wide = hidden.detach().double().requires_grad_()
    F.cross_entropy(wide @ weight.double().T, label, reduction="sum").backward()
    torch.testing.assert_close(hidden.grad.double(), wide.grad, rtol=0.02, atol=0)
