"""What holds for the public functions as such: importing them is cheap, and torch.compile traces through them."""

import subprocess
import sys

import pytest
import torch

import loong_kernels
from loong_kernels import registry

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def test_importing_the_package_imports_neither_triton_nor_the_compiler():
    script = "import loong_kernels, sys; print([name for name in ('triton', 'torch._dynamo') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout.strip() == "[]"


def layer(x, weight, q, k, cos, sin, head, labels):
    """Every op of a dense layer, two of them in two shape classes."""
    normed = loong_kernels.rms_norm(x, weight, 1e-5)
    q, k = loong_kernels.rotary(loong_kernels.rms_norm(q, weight[:8], 1e-5), k, cos, sin)
    attended = loong_kernels.attention(q[None], k[None], k[None])
    loss = loong_kernels.linear_cross_entropy(loong_kernels.swiglu(normed), head, labels)
    return loss.sum() + attended.square().sum()


def arguments():
    generator = torch.Generator(DEVICE).manual_seed(0)
    shapes = [(6, 32), (32,), (6, 4, 8), (6, 2, 8), (6, 4), (6, 4), (40, 16)]
    tensors = [torch.randn(*shape, generator=generator, device=DEVICE) for shape in shapes]
    for index in (0, 1, 2, 3, 6):
        tensors[index].requires_grad_()
    return [*tensors, torch.arange(6, device=DEVICE)]


@pytest.mark.parametrize("warm", [False, True])
def test_torch_compile_traces_through_every_op_without_a_break(warm):
    torch._dynamo.reset()
    registry.configure({})
    given = arguments()
    if warm:
        layer(*given)
    differentiable = [tensor for tensor in given if tensor.requires_grad]
    compiled = torch.compile(layer, fullgraph=True, backend="inductor" if DEVICE == "cuda" else "aot_eager")(*given)
    gradients = torch.autograd.grad(compiled, differentiable)
    eager = layer(*given)
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradients, torch.autograd.grad(eager, differentiable), rtol=1e-3, atol=1e-3)
    assert {decision.op for decision in registry.decisions()} >= {"rms_norm", "rotary", "attention", "swiglu"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k: loong_kernels.attention(q[None], k[None], k[None]), "attention: 4 query heads .* of 3 key/value"),
        (
            lambda q, k: loong_kernels.packed_attention(q, k, k, torch.tensor([0, 5], dtype=torch.int32), 5),
            "packed_attention: 4 query heads .* of 3 key/value",
        ),
    ],
)
def test_heads_that_do_not_divide_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(torch.zeros(5, 4, 8), torch.zeros(5, 3, 8))
