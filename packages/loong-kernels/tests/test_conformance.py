"""Every implementation on every device of this machine; and the suite itself, on implementations that are wrong."""

import pytest
import torch
from torch import Tensor

from loong_kernels import conformance, registry
from loong_kernels.registry import REGISTRY, Implementation

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@conformance.parametrize(DEVICES)
def test_implementation_equals_the_reference(check):
    check()


@pytest.mark.parametrize("op", [op.name for op in registry.ops()])
def test_every_op_has_samples_in_float32_or_integers_and_a_reference(op):
    assert any(sample.dtype is torch.float32 for sample in conformance.samples_of(op))
    assert any(one.name == "reference" and one.devices == ("*",) for one in registry.implementations(op))


@pytest.fixture
def swiglu_by():
    """Register functions as implementations of swiglu on cpu for one test."""
    before = list(REGISTRY._implementations)

    def add(name, fn, **options):
        REGISTRY.register(Implementation(name, "swiglu", ("cpu",), fn, priority=None, **options))
        return conformance.run("cpu", "swiglu", name)

    yield add
    REGISTRY._implementations[:] = before
    REGISTRY._decide_anew()


def right(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, -1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)


def test_a_right_implementation_passes(swiglu_by):
    report = swiglu_by("right", right)
    assert report.passed
    assert not report.failed
    assert str(report).startswith(f"{len(report.passed)} passed, 0 declined, 0 failed")


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, gate_up):
        ctx.save_for_backward(gate_up)
        return right(gate_up)

    @staticmethod
    def backward(ctx, upstream):
        (gate_up,) = ctx.saved_tensors
        with torch.enable_grad():
            again = gate_up.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(right(again), again, upstream)
        return gradient * 1.001


def unwritten(gate_up: Tensor) -> Tensor:
    out = torch.empty_like(gate_up[:, : gate_up.shape[1] // 2])
    out[:-1] = right(gate_up)[:-1]
    return out + 0 * gate_up.sum()


def overwriting(gate_up: Tensor) -> Tensor:
    out = right(gate_up)
    gate_up.detach().zero_()
    return out


def fickle(gate_up: Tensor) -> Tensor:
    return right(gate_up) * (1 + 1e-6 * torch.rand(()))


@pytest.mark.parametrize(
    ("fn", "finding"),
    [
        (lambda gate_up: right(gate_up) * 1.001, "output 0 is off by"),
        (WrongGradient.apply, "gradient of gate_up is off by"),
        (unwritten, "not finite"),
        (overwriting, "inputs were written to: gate_up"),
        (fickle, "a second run gave other bits"),
        (lambda gate_up: right(gate_up)[:1], "output 0 has shape"),
    ],
)
def test_a_wrong_implementation_is_found_out(swiglu_by, fn, finding):
    report = swiglu_by("wrong", fn)
    assert any(finding in reason for reason in report.failed.values()), report


def test_an_implementation_that_says_it_is_not_deterministic_may_be_fickle(swiglu_by):
    report = swiglu_by("fickle", fickle, nondeterministic_on=frozenset({"cpu"}))
    assert not any("other bits" in reason for reason in report.failed.values())


def test_an_implementation_that_declines_every_sample_has_failed(swiglu_by):
    report = swiglu_by("shy", right, supports=lambda case: "not today")
    assert report.failed == {"swiglu/shy on cpu": "declines every sample of its op"}
    assert set(report.declined.values()) == {"not today"}


def test_samples_of_an_op_that_names_none_are_an_error():
    op = REGISTRY.define("without_samples", "an op of this test")
    try:
        with pytest.raises(ValueError, match="names no samples"):
            conformance.samples_of("without_samples")
    finally:
        del REGISTRY._ops[op.name]
