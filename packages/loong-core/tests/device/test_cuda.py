"""The cuda device says what is missing, and knows the peaks of data sheets."""

import os
import subprocess
import sys

import pytest
import torch

from loong_core.device import conformance
from loong_core.device.cuda import CudaDevice, dense_peak

HERE = CudaDevice()


@pytest.mark.parametrize(
    "check", conformance.CHECKS if HERE.availability().ok else conformance.CHECKS_WITHOUT_RUNTIME, ids=str
)
def test_cuda_conforms_as_far_as_this_machine_goes(check):
    check(HERE)


@pytest.mark.parametrize(
    ("name", "dtype", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989e12),
        ("NVIDIA H100 80GB HBM3", torch.float8_e4m3fn, 1979e12),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756e12),
        ("NVIDIA H200", torch.bfloat16, 989e12),
        ("NVIDIA H20", torch.bfloat16, 148e12),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312e12),
        ("NVIDIA A100-SXM4-80GB", torch.float32, 19.5e12),
        ("NVIDIA B200", torch.bfloat16, 2250e12),
        ("NVIDIA GB200", torch.bfloat16, 2500e12),
        ("NVIDIA L40S", torch.bfloat16, 362e12),
        ("NVIDIA L4", torch.bfloat16, 121e12),
        ("NVIDIA GeForce RTX 4090", torch.bfloat16, 165.2e12),
    ],
)
def test_a_gpu_is_found_in_the_data_sheets_by_its_name(name, dtype, peak):
    assert dense_peak(name, dtype) == peak


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("NVIDIA A100-SXM4-80GB", torch.float8_e4m3fn), ("NVIDIA H1000", torch.bfloat16), ("Kunlun P800", torch.bfloat16)],
)
def test_a_rate_that_no_data_sheet_gives_is_unknown(name, dtype):
    assert dense_peak(name, dtype) is None


def test_a_torch_without_cuda_is_told_to_the_user(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    assert "built without CUDA" in CudaDevice().availability().reason


def test_no_visible_gpu_is_told_to_the_user(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = CudaDevice().availability()
    assert not answer.ok
    assert "CUDA_VISIBLE_DEVICES" in answer.reason


def test_the_allocator_is_left_alone_where_the_user_configures_it_by_its_older_name(monkeypatch):
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    assert CudaDevice().environment_defaults() == {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    assert CudaDevice().environment_defaults() == {}


def test_asking_for_availability_does_not_start_cuda():
    program = "import torch; from loong_core.device import discover; discover(); print(torch.cuda.is_initialized())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=dict(os.environ))
    assert done.stdout.split() == ["False"], done.stderr
