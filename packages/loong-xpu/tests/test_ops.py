"""On an XPU ops go to torch's own operations, never to Triton, TransformerEngine or NVIDIA's attention kernels."""

import pytest
import torch

import loong_kernels
from loong_kernels import conformance, registry
from loong_xpu.device import XpuDevice
from loong_xpu.ops import EXCLUDED, register

OPS = [op.name for op in registry.ops()]


@pytest.fixture
def routed(runtime):
    """The runtime is loaded and the plug-in registered, as the entry point does in a fresh process."""
    assert XpuDevice().availability().ok
    register(registry.REGISTRY)


def test_without_a_runtime_nothing_is_excluded():
    fresh = registry.Registry()
    register(fresh)
    assert fresh._excluded == {}


def test_the_plug_in_loads_without_error():
    (plugin,) = [each for each in registry.plugins() if each.origin.startswith("loong-xpu")]
    assert plugin.error is None


@pytest.mark.parametrize("op", OPS)
def test_nothing_that_stands_on_an_excluded_toolchain_may_serve(op, routed):
    for standing in registry.REGISTRY.standing(op, "cuda"):
        if standing.implementation.uses & set(EXCLUDED):
            assert "Kunlun XPU" in standing.reason


def test_without_the_routing_triton_would_serve(runtime):
    assert XpuDevice().availability().ok
    standings = registry.REGISTRY.standing("rms_norm", "cuda")
    assert ("triton", None) in [(each.implementation.name, each.reason) for each in standings]


def test_a_call_on_the_xpu_is_served_by_torch_and_says_why_not_by_triton(routed):
    hidden = torch.ones(2, 4, device="cuda")
    assert loong_kernels.rms_norm(hidden, torch.ones(4, device="cuda"), 1e-6).device.type == "cuda"
    decision = [each for each in registry.decisions() if each.op == "rms_norm" and each.case.device == "cuda"][-1]
    assert decision.implementation == "reference"
    assert ("triton", EXCLUDED["triton"]) in [(each.implementation, each.reason) for each in decision.declined]


def test_asking_for_triton_by_name_says_why_it_cannot_be(routed):
    with pytest.raises(registry.KernelChoiceError, match="this is a Kunlun XPU"):
        registry.configure({"rms_norm": "triton"}, device_type="cuda")


@pytest.mark.parametrize("op", OPS)
def test_what_serves_first_on_the_xpu_conforms(op, routed):
    usable = [each.implementation for each in registry.REGISTRY.standing(op, "cuda") if each.reason is None]
    report = conformance.run("cuda:0", op=op, implementation=usable[0].name)
    assert report.failed == {}
    assert report.passed
