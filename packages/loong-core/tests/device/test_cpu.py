"""The cpu device conforms, and its figures mean what they say."""

import time

import pytest
import torch

from loong_core.device import conformance
from loong_core.device.cpu import CpuDevice, CpuEvent, measured_matmul_flops
from loong_core.errors import UserError


@pytest.mark.parametrize("check", conformance.CHECKS, ids=str)
def test_the_cpu_conforms(check):
    check(CpuDevice())


def test_peak_flops_are_what_a_matmul_reaches():
    size = 512
    left = torch.ones(size, size)
    left @ left
    started = time.perf_counter()
    for _ in range(3):
        left @ left
    reached = 3 * 2 * size**3 / (time.perf_counter() - started)
    assert 0.05 < reached / CpuDevice().peak_flops(torch.float32) < 3


def test_peak_flops_are_measured_once():
    CpuDevice().peak_flops(torch.float32)
    hits = measured_matmul_flops.cache_info().hits
    CpuDevice().peak_flops(torch.bfloat16)
    assert measured_matmul_flops.cache_info().hits == hits + 1


def test_an_unrecorded_event_has_no_time():
    start, end = CpuEvent(), CpuEvent()
    start.record()
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(end)


def test_a_random_state_of_another_device_names_both_sizes():
    with pytest.raises(UserError, match=r"16 torch\.uint8 elements is not one of the cpu device, which has 5056 bytes"):
        CpuDevice().set_random_state(torch.zeros(16, dtype=torch.uint8))
