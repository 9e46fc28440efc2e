"""Widths of real models, which are no powers of two."""

import pytest
import torch

from loong_kernels.ops.wide_norm_rotary.reference import wide_norm_rotary_reference
from loong_kernels.ops.wide_norm_rotary.triton_kernels import wide_norm_rotary_triton


@pytest.mark.skipif(torch.cuda.is_available(), reason="runs in Triton's interpreter")
@pytest.mark.parametrize("heads", [12, 24, 40])
def test_heads_of_128_elements_equal_the_reference(heads):
    generator = torch.Generator().manual_seed(heads)
    x = torch.randn(3, heads * 128, generator=generator)
    weight = torch.randn(heads * 128, generator=generator)
    angle = torch.randn(3, 64, generator=generator)
    results = []
    for op in (wide_norm_rotary_reference, wide_norm_rotary_triton):
        leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
        out = op(*leaves, angle.cos(), angle.sin(), 1e-6)
        results.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-4)
