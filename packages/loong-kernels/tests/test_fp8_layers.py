"""Layers in 8 bits: each product is that of the rounded operands, whatever else is fused, and errors stay e4m3's."""

import pytest
import torch

from loong_kernels import grouped_linear, linear, swiglu
from loong_kernels.fp8.experts import fp8_experts
from loong_kernels.fp8.feed_forward import fp8_feed_forward
from loong_kernels.fp8.formats import scales_for
from loong_kernels.fp8.linear import fp8_linear
from loong_kernels.fp8.weights import weight_in_bits, why_not_in_bits
from loong_kernels.ops.quantise import quantise

GRAINS = {"blockwise": ("tiles", "blocks"), "rowwise": ("rows", "rows"), "tensorwise": ("tensor", "tensor")}


def random(*shape, dtype=torch.float64, scale=1.0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64) * scale
    return values.to(dtype).requires_grad_()


def rounded(x, grain, dim):
    """`x` as a product that sums over `dim` sees it."""
    made = quantise(x, grain, by_row=dim == 1, by_column=dim == 0)
    if dim == 1:
        return made.by_row.dequantised(x.dtype)[: x.shape[0]]
    return made.by_column.dequantised(x.dtype).T[: x.shape[0]]


def relative_error(actual, expected):
    return ((actual - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("recipe", list(GRAINS))
def test_each_product_of_a_linear_layer_is_that_of_its_rounded_operands(recipe):
    activations, weights = GRAINS[recipe]
    x, weight, upstream = random(37, 256), random(128, 256), random(37, 128).detach()
    y = fp8_linear(x, weight, recipe=recipe)
    of_x, of_weight = torch.autograd.grad(y, (x, weight), upstream)
    x, weight = x.detach(), weight.detach()
    assert torch.allclose(y, rounded(x, activations, 1) @ rounded(weight, weights, 1).T)
    assert torch.allclose(of_x, rounded(upstream, activations, 1) @ rounded(weight, weights, 0))
    assert torch.allclose(of_weight, rounded(upstream, activations, 0).T @ rounded(x, activations, 0))


@pytest.mark.parametrize("recipe", list(GRAINS))
def test_a_linear_layer_is_near_the_exact_one(recipe):
    x, weight, bias = random(70, 256), random(128, 256), random(128)
    upstream = random(70, 128).detach()
    exact = torch.autograd.grad(linear(x, weight, bias), (x, weight, bias), upstream)
    near = torch.autograd.grad(fp8_linear(x, weight, bias, recipe=recipe), (x, weight, bias), upstream)
    # Two operands, each off by at most 2^-4 and about 2.6 % on average.
    assert all(relative_error(one, other) < 0.05 for one, other in zip(near[:2], exact[:2]))
    assert torch.equal(near[2], exact[2])


def test_a_weight_rounded_before_gives_the_same_as_one_rounded_in_the_layer():
    x, weight = random(5, 128), random(256, 128)
    for recipe in GRAINS:
        held = weight_in_bits(weight, recipe)
        pairs = []
        for in_bits in (None, held):
            y = fp8_linear(x, weight, recipe=recipe, in_bits=in_bits)
            pairs.append((y, *torch.autograd.grad(y.square().sum(), (x, weight))))
        assert all(torch.equal(one, other) for one, other in zip(*pairs))


def test_a_weight_gradient_is_added_to_a_sum_and_not_returned():
    x, weight = random(5, 128), random(256, 128)
    total = torch.ones(256, 128, dtype=torch.float64)
    (expected,) = torch.autograd.grad(fp8_linear(x, weight, recipe="blockwise").sum(), weight)
    fp8_linear(x, weight, recipe="blockwise", weight_grad_into=total).sum().backward()
    assert weight.grad is None
    assert torch.allclose(total, expected + 1)


@pytest.mark.parametrize("recipe", list(GRAINS))
def test_a_fused_feed_forward_is_its_layers_one_after_the_other(recipe):
    x, gate_up, down = random(37, 128), random(512, 128), random(128, 256)
    upstream = random(37, 128).detach()
    apart = fp8_linear(swiglu(fp8_linear(x, gate_up, recipe=recipe)), down, recipe=recipe)
    fused = fp8_feed_forward(x, gate_up, down, recipe=recipe)
    assert torch.allclose(fused, apart)
    of_fused, of_apart = (torch.autograd.grad(y, (x, gate_up, down), upstream) for y in (fused, apart))
    assert all(torch.allclose(one, other) for one, other in zip(of_fused, of_apart))


@pytest.mark.parametrize("trained", ["x", "gate_up", "down"])
def test_a_fused_feed_forward_gives_each_gradient_alone(trained):
    tensors = {"x": random(9, 128), "gate_up": random(256, 128), "down": random(128, 128)}
    whole = torch.autograd.grad(fp8_feed_forward(**tensors, recipe="blockwise").sum(), tensors[trained])
    alone = {name: tensor.detach().requires_grad_(name == trained) for name, tensor in tensors.items()}
    y = fp8_feed_forward(**alone, recipe="blockwise")
    assert torch.equal(torch.autograd.grad(y.sum(), alone[trained])[0], whole[0])


def test_experts_are_near_the_exact_ones_and_hold_to_their_rows():
    counts = torch.tensor([5, 0, 130, 2])
    offsets = counts.cumsum(0).to(torch.int32)
    rows, gate_up, down = random(137, 128), random(4, 512, 128), random(4, 128, 256)
    upstream = random(137, 128).detach()
    exact = grouped_linear(swiglu(grouped_linear(rows, gate_up, offsets)), down, offsets)
    near = fp8_experts(rows, gate_up, down, offsets)
    assert relative_error(near, exact) < 0.08
    of_exact, of_near = (torch.autograd.grad(y, (rows, gate_up, down), upstream) for y in (exact, near))
    assert all(relative_error(one, other) < 0.1 for one, other in zip(of_near, of_exact))
    assert not of_near[1][1].any()
    assert not of_near[2][1].any()
    first = fp8_experts(rows[:5], gate_up[:1], down[:1], offsets[:1])
    assert torch.allclose(near[:5], first)


def test_experts_add_their_weight_gradients_to_sums():
    offsets = torch.tensor([3, 7], dtype=torch.int32)
    rows, gate_up, down = random(7, 128), random(2, 256, 128), random(2, 128, 128)
    expected = torch.autograd.grad(fp8_experts(rows, gate_up, down, offsets).sum(), (gate_up, down))
    totals = torch.ones_like(gate_up), torch.ones_like(down)
    fp8_experts(rows, gate_up, down, offsets, weight_grads_into=totals).sum().backward()
    assert gate_up.grad is None
    assert all(torch.allclose(total, one + 1) for total, one in zip(totals, expected))


def test_scales_are_the_smallest_powers_of_two_that_fit():
    largest = torch.tensor([448.0, 448.1, 447.9, 1.0, 1.75, 1.76, 0.0, 1e-38, float("inf"), float("nan")])
    scales = scales_for(largest)
    assert scales[:7].tolist() == [1.0, 2.0, 1.0, 2.0**-8, 2.0**-8, 2.0**-7, 1.0]
    assert scales[7] == 2.0**-100
    assert scales[8:].isnan().all()


def test_widths_that_are_no_multiples_of_a_tile_are_told():
    assert why_not_in_bits(256, 128) is None
    assert "200" in why_not_in_bits(200, 128)
    with pytest.raises(ValueError, match="multiples of 128"):
        fp8_linear(random(4, 200), random(128, 200), recipe="blockwise")
