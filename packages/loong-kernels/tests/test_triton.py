"""Triton kernels beyond conformance: they compile for a GPU that is not here, and keep what they save small."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from loong_kernels import add_rms_norm, qk_norm_rotary, registry, rms_norm, rotary, swiglu

TRITON = "triton" if torch.cuda.is_available() else "triton_interpreted"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE).requires_grad_()


@pytest.fixture
def by_triton():
    with registry.using(dict.fromkeys(("rms_norm", "rotary", "swiglu", "add_rms_norm", "qk_norm_rotary"), TRITON)):
        yield


@pytest.fixture(scope="module")
def compiled():
    script = Path(__file__).with_name("compile_for_sm90.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kernel_compiles_for_an_h200(compiled):
    assert len(compiled) >= 7
    assert {kernel: error for kernel, error in compiled.items() if error} == {}


def saved_elements(output):
    return [tensor.numel() for tensor in output.grad_fn.saved_tensors]


@pytest.mark.usefixtures("by_triton")
def test_backward_saves_nothing_but_inputs():
    x, weight, gate_up, q, angles = random(5, 16), random(16), random(5, 12), random(5, 2, 8), random(5, 4).detach()
    assert saved_elements(rms_norm(x, weight, 1e-5)) == [x.numel(), weight.numel()]
    assert saved_elements(swiglu(gate_up)) == [gate_up.numel()]
    assert saved_elements(rotary(q, q, angles, angles)[0]) == [angles.numel(), angles.numel()]


@pytest.mark.usefixtures("by_triton")
def test_rms_norm_programs_that_take_several_blocks_of_rows_add_up_all_of_them(monkeypatch):
    from loong_kernels.ops.rms_norm import triton_kernels

    monkeypatch.setattr(triton_kernels, "ELEMENTS_IN_REGISTERS", 32)  # 2 rows of 16 at a time
    monkeypatch.setattr(triton_kernels, "BACKWARD_PROGRAMS", 3)  # of 11 blocks, so 4 each
    x, weight = random(21, 16), random(16)
    gradients = torch.autograd.grad(rms_norm(x, weight, 1e-5).square().sum(), (x, weight))
    with registry.using({"rms_norm": "reference"}):
        expected = torch.autograd.grad(rms_norm(x, weight, 1e-5).square().sum(), (x, weight))
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("by_triton")
def test_fused_norms_whose_programs_take_several_tokens_add_up_all_of_them(monkeypatch):
    from loong_kernels.ops.add_rms_norm import triton_kernels as added
    from loong_kernels.ops.qk_norm_rotary import triton_kernels as rotated

    monkeypatch.setattr(added, "BACKWARD_PROGRAMS", 3)
    monkeypatch.setattr(rotated, "BACKWARD_PROGRAMS", 3)  # of 7 tokens, so 4 each
    monkeypatch.setattr(rotated, "ELEMENTS_AT_ONCE", 16)  # 2 of 4 heads at once
    qkv, weights, angles = random(7, 6 * 8), [random(8), random(8)], random(7, 4).detach()

    def loss():
        q, k, v = qk_norm_rotary(qkv, angles.cos(), angles.sin(), heads=4, kv_heads=1,
                                 q_weight=weights[0], k_weight=weights[1])  # fmt: skip
        normed, total = add_rms_norm(q.flatten(1), qkv[:, :32], random(32), 1e-5)
        return (normed * total).sum() + (k * v).sum()

    gradients = torch.autograd.grad(loss(), (qkv, *weights))
    with registry.using({"add_rms_norm": "reference", "qk_norm_rotary": "reference"}):
        expected = torch.autograd.grad(loss(), (qkv, *weights))
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("by_triton")
def test_no_tokens_are_served_too():
    x, weight = random(0, 16), random(16)
    rms_norm(x, weight, 1e-5).sum().backward()
    assert weight.grad.abs().max() == 0
    assert swiglu(random(0, 12)).shape == (0, 6)
    assert rotary(random(0, 2, 8), random(0, 1, 8), random(0, 4), random(0, 4))[1].shape == (0, 1, 8)


@pytest.mark.usefixtures("by_triton")
def test_float64_is_declined_with_the_reason():
    with pytest.raises(registry.KernelChoiceError, match="computes in float32, so float64 is left to others"):
        swiglu(torch.zeros(2, 4, dtype=torch.float64, device=DEVICE))
