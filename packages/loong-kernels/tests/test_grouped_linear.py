import pytest
import torch

from loong_kernels import grouped_linear


def operands(rows_of_experts, in_features=8, out_features=6, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    rows = sum(rows_of_experts)
    x = torch.randn(rows, in_features, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(
        len(rows_of_experts), out_features, in_features, generator=generator, dtype=dtype, requires_grad=True
    )
    return x, weight, torch.tensor(rows_of_experts).cumsum(0).to(torch.int32)


def test_each_row_is_multiplied_by_its_experts_weight():
    x, weight, offsets = operands([2, 0, 3])
    y = grouped_linear(x, weight, offsets)
    for row, expert in enumerate([0, 0, 2, 2, 2]):
        torch.testing.assert_close(y[row], weight[expert] @ x[row])


@pytest.mark.parametrize("rows_of_experts", [[2, 0, 3], [0, 4], [0, 0], [1]])
def test_gradients_are_those_of_finite_differences(rows_of_experts):
    x, weight, offsets = operands(rows_of_experts, 3, 2)
    assert torch.autograd.gradcheck(lambda x, weight: grouped_linear(x, weight, offsets), (x, weight))


def test_an_expert_without_rows_gets_a_zero_gradient():
    x, weight, offsets = operands([2, 0, 3])
    grouped_linear(x, weight, offsets).sum().backward()
    assert weight.grad[1].abs().max() == 0
    assert weight.grad[0].abs().max() > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x, weight, offsets: (x[:, 1:], weight, offsets), "wants x"),
        (lambda x, weight, offsets: (x, weight, offsets[1:]), "wants x"),
        (lambda x, weight, offsets: (x, weight, offsets.long()), "int32"),
    ],
)
def test_operands_that_do_not_fit_are_named(change, message):
    with pytest.raises(ValueError, match=message):
        grouped_linear(*change(*operands([2, 1])))


cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@cuda
@pytest.mark.parametrize(
    "rows_of_experts", [[100, 0, 33, 7], [0, 0, 64, 0], [1, 1, 1, 1], [0, 0, 0, 0], [300, 0, 0, 1]]
)
def test_grouped_mm_equals_the_reference_on_a_gpu(rows_of_experts):
    x, weight, offsets = operands(rows_of_experts, 64, 96, torch.float32)
    exact = [each.detach().bfloat16().double().requires_grad_() for each in (x, weight)]
    bf16 = [each.detach().bfloat16().cuda().requires_grad_() for each in (x, weight)]
    y, expected = grouped_linear(*bf16, offsets.cuda()), grouped_linear(*exact, offsets)
    upstream = torch.randn(y.shape, generator=torch.Generator().manual_seed(1))
    y.backward(upstream.bfloat16().cuda())
    expected.backward(upstream.bfloat16().double())
    torch.testing.assert_close(y.cpu().double(), expected, rtol=1e-2, atol=1e-1)
    for ours, reference in zip(bf16, exact):
        torch.testing.assert_close(ours.grad.cpu().double(), reference.grad, rtol=1e-2, atol=1e-1)


@cuda
def test_nothing_waits_for_the_device():
    x, weight, offsets = operands([100, 0, 33, 7], 64, 96, torch.float32)
    x, weight, offsets = x.detach().bfloat16().cuda(), weight.detach().bfloat16().cuda(), offsets.cuda()
    x.requires_grad_(), weight.requires_grad_()
    grouped_linear(x, weight, offsets)
    torch.cuda.set_sync_debug_mode("error")
    try:
        grouped_linear(x, weight, offsets).backward(torch.ones(140, 96, device="cuda", dtype=torch.bfloat16))
    finally:
        torch.cuda.set_sync_debug_mode("default")
