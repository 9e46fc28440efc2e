"""The XPU device on a machine with Kunlun's runtime (emulated), and on one without."""

import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from loong_core.device import conformance, discover, select
from loong_core.device.megatron_on_cpu import answering
from loong_core.errors import UserError
from loong_core.parallel.ranks import initialise_from_env, leave
from loong_xpu.device import XpuDevice
from loong_xpu.environment import DEFAULTS, LEFT_ALONE


def found(name):
    return next(each for each in discover() if each.name == name)


@pytest.mark.parametrize("check", conformance.CHECKS, ids=str)
def test_the_xpu_conforms_on_the_emulated_runtime(check, runtime):
    assert XpuDevice().availability().ok
    check(XpuDevice())


@pytest.mark.parametrize("check", conformance.CHECKS_WITHOUT_RUNTIME, ids=str)
def test_the_xpu_conforms_without_a_runtime(check):
    check(XpuDevice())


def test_the_device_is_registered_by_entry_point_only():
    assert [entry.value for entry in entry_points(group="loong.devices")] == ["loong_xpu.device:XpuDevice"]


def test_without_a_runtime_it_says_what_is_missing():
    each = found("xpu")
    assert each.state == "unavailable"
    assert "no module torch_xmlir" in each.reason
    assert "XPyTorch" in each.reason


def test_a_runtime_that_does_not_load_is_told_with_its_error(monkeypatch, tmp_path):
    (tmp_path / "torch_xmlir.py").write_text("raise ImportError('libxpurt.so: cannot open shared object file')")
    monkeypatch.syspath_prepend(tmp_path)
    reason = XpuDevice().availability().reason
    assert "libxpurt.so: cannot open shared object file" in reason
    assert "torch_xmlir --doctor" in reason


def test_a_runtime_that_shows_no_xpu_names_what_may_hide_it(runtime, monkeypatch):
    import torch_xmlir

    del torch_xmlir
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    answer = XpuDevice().availability()
    assert not answer.ok
    assert "/dev/xpu0" in answer.reason
    assert "XPU_VISIBLE_DEVICES" in answer.reason


def test_an_explicit_choice_without_a_runtime_is_the_users_error():
    with pytest.raises(UserError, match=r"device 'xpu' \(chosen by name; loong-xpu .*no module torch_xmlir"):
        select("xpu")


def test_with_a_runtime_it_is_chosen_and_cuda_is_not_taken_for_real(runtime, monkeypatch):
    monkeypatch.delenv("LOONG_DEVICE", raising=False)
    assert select().why.startswith("xpu, chosen automatically: 2 XPUs")
    assert found("cuda").state == "unavailable"
    assert "answered by xpu" in found("cuda").reason


def test_the_emulated_runtime_leaves_no_trace(runtime):
    before = dict(vars(torch.cuda)), dist.init_process_group
    assert XpuDevice().availability().ok
    assert dict(vars(torch.cuda)) != before[0]
    sys.modules.pop("torch_xmlir").leave()
    assert (dict(vars(torch.cuda)), dist.init_process_group) == before
    assert torch.ones(1).device.type == "cpu"


def test_megatrons_cuda_calls_are_left_to_the_runtime(runtime):
    import megatron.core.utils

    with answering(XpuDevice()):
        assert megatron.core.utils.torch is torch


def test_ranks_join_and_communicate_through_the_name_of_nccl(runtime):
    device = XpuDevice()
    assert device.availability().ok
    place, bound = initialise_from_env(device)
    try:
        values = torch.arange(3.0, device=bound)
        dist.all_reduce(values)
        assert (place.world_size, bound, values.tolist()) == (1, torch.device("cuda", 0), [0, 1, 2])
    finally:
        leave()


def test_rank_and_device_numbers_agree(runtime):
    device = XpuDevice()
    assert device.availability().ok
    assert device.bind(1) == torch.device("cuda", 1)
    with pytest.raises(UserError, match="local rank 2 needs xpu device number 2, but this machine shows 2"):
        device.bind(2)


def test_names_are_told_where_there_are_xpus(runtime):
    assert XpuDevice().describe() == "xpu: 2 x P800 OAM (emulated), behind torch's CUDA calls"


def test_a_rate_that_nobody_publishes_is_unknown():
    assert XpuDevice().peak_flops(torch.bfloat16) is None


def test_every_environment_default_says_what_it_does_and_names_no_network_card():
    names = [variable.name for variable in DEFAULTS]
    assert len(set(names)) == len(names)
    assert all(variable.meaning and variable.read_by for variable in DEFAULTS)
    assert not set(names) & set(LEFT_ALONE)


def test_environment_defaults_are_those_of_the_readme():
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    for variable in DEFAULTS:
        assert f"| `{variable.name}={variable.value}` | {variable.read_by} | {variable.meaning} |" in readme
    for name, meaning in LEFT_ALONE.items():
        assert f"| `{name}` | {meaning} |" in readme
