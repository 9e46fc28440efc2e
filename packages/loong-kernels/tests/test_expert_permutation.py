import pytest
import torch

from loong_kernels import combine_from_experts, order_by_expert, permute_to_experts
from loong_kernels.ops.expert_permutation.gathers import combine_by_gathers, permute_by_gathers
from loong_kernels.ops.expert_permutation.reference import combine_from_experts_reference, permute_to_experts_reference


def choices_of(tokens, experts, top_k, seed=0):
    scores = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(seed))
    return scores.topk(top_k).indices


def random(*shape, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype).requires_grad_()


def test_rows_are_sorted_by_expert_and_then_by_token():
    choices = torch.tensor([[2, 0], [0, 1], [2, 3]])
    order = order_by_expert(choices, 5)
    assert order.offsets.tolist() == [2, 3, 5, 6, 6]
    assert order.counts.tolist() == [2, 1, 2, 1, 0]
    assert order.choice_of_row.tolist() == [1, 2, 3, 0, 4, 5]
    assert order.row_of_choice.tolist() == [[3, 0], [1, 2], [4, 5]]
    assert order.offsets.dtype == torch.int32


def test_with_a_capacity_each_expert_keeps_its_first_tokens():
    choices = torch.tensor([[0], [0], [1], [0]])
    order = order_by_expert(choices, 3, capacity=2)
    assert order.offsets.tolist() == [2, 4, 6]
    assert order.counts.tolist() == [3, 1, 0]
    assert order.choice_of_row.tolist() == [0, 1, 2, -1, -1, -1]
    assert order.row_of_choice.tolist() == [[0], [1], [2], [-1]]


def test_with_a_priority_each_expert_keeps_its_highest():
    choices, priority = torch.tensor([[0], [0], [1], [0]]), torch.tensor([[0.1], [0.3], [0.9], [0.2]])
    order = order_by_expert(choices, 2, capacity=2, priority=priority)
    assert order.choice_of_row.tolist() == [1, 3, 2, -1]
    assert order.row_of_choice.tolist() == [[-1], [0], [2], [1]]


@pytest.mark.parametrize("capacity", [None, 3])
def test_row_of_choice_and_choice_of_row_are_inverse(capacity):
    order = order_by_expert(choices_of(17, 6, 3), 6, capacity=capacity)
    kept = order.row_of_choice.flatten() >= 0
    rows = order.row_of_choice.flatten()[kept]
    assert order.choice_of_row[rows].tolist() == torch.arange(17 * 3)[kept].tolist()
    assert (order.choice_of_row >= 0).sum() == kept.sum()
    assert bool(kept.all()) == (capacity is None)


@pytest.mark.parametrize("capacity", [None, 3])
def test_permuting_and_combining_with_unit_weights_multiplies_by_the_kept_choices(capacity):
    x, order = random(17, 4), order_by_expert(choices_of(17, 6, 3), 6, capacity=capacity)
    back = combine_from_experts(permute_to_experts(x, order), torch.ones(17, 3), order)
    torch.testing.assert_close(back, x * (order.row_of_choice >= 0).sum(1, keepdim=True))


@pytest.mark.parametrize("capacity", [None, 2])
def test_gradients_are_those_of_finite_differences(capacity):
    order = order_by_expert(choices_of(5, 4, 2), 4, capacity=capacity)
    rows = order.choice_of_row.shape[0]
    assert torch.autograd.gradcheck(lambda x: permute_to_experts(x, order), (random(5, 3),))
    assert torch.autograd.gradcheck(lambda y, w: combine_from_experts(y, w, order), (random(rows, 3), random(5, 2)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("capacity", [None, 3])
@pytest.mark.parametrize("tokens", [1, 17])
def test_gathers_equal_the_reference(dtype, capacity, tokens):
    order = order_by_expert(choices_of(tokens, 6, 3), 6, capacity=capacity)
    x, y = random(tokens, 8, dtype=dtype), random(order.choice_of_row.shape[0], 8, dtype=dtype)
    weights = random(tokens, 3, dtype=torch.promote_types(dtype, torch.float32))
    pairs = [
        (permute_by_gathers(x, order), permute_to_experts_reference(x, order), (x,)),
        (combine_by_gathers(y, weights, order), combine_from_experts_reference(y, weights, order), (y, weights)),
    ]
    for ours, reference, operands in pairs:
        assert ours.dtype == reference.dtype
        torch.testing.assert_close(ours, reference)
        upstream = random(*ours.shape, dtype=dtype).detach().T.contiguous().T
        gradients = [torch.autograd.grad(result, operands, upstream) for result in (ours, reference)]
        for mine, expected in zip(*gradients):
            torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("capacity", [None, 3])
def test_no_tokens_are_permuted_to_empty_rows_and_back(capacity):
    order = order_by_expert(torch.empty(0, 3, dtype=torch.int64), 6, capacity=capacity)
    rows = permute_to_experts(torch.empty(0, 8, requires_grad=True), order)
    assert rows.requires_grad
    assert rows.shape == (0 if capacity is None else 18, 8)
    assert combine_from_experts(rows, torch.empty(0, 3), order).shape == (0, 8)


def test_operands_that_do_not_fit_are_named():
    order = order_by_expert(choices_of(5, 4, 2), 4)
    with pytest.raises(ValueError, match="an order of 5 tokens"):
        permute_to_experts(random(4, 3), order)
    with pytest.raises(ValueError, match=r"wants y \[10, hidden\]"):
        combine_from_experts(random(9, 3), random(5, 2), order)
    with pytest.raises(ValueError, match="only with a capacity"):
        order_by_expert(choices_of(5, 4, 2), 4, priority=torch.rand(5, 2))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("capacity", [None, 3])
def test_nothing_waits_for_the_device(capacity):
    choices, x = choices_of(17, 6, 3).cuda(), random(17, 8, dtype=torch.float32).detach().cuda().requires_grad_()
    weights = torch.ones(17, 3, device="cuda", requires_grad=True)

    def there_and_back():
        order = order_by_expert(choices, 6, capacity=capacity)
        combine_from_experts(permute_to_experts(x, order), weights, order).sum().backward()

    there_and_back()
    torch.cuda.set_sync_debug_mode("error")
    try:
        there_and_back()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert x.grad is not None
