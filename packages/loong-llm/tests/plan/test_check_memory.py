"""`check` plans a run on the device it would get, before it starts."""

from pathlib import Path

import pytest

from loong_core.config import load_run
from loong_core.device import Hardware
from loong_core.device.cpu import CpuDevice
from loong_llm.check import check_run
from loong_llm.planning import cluster_of
from loong_llm.recipes.training_config import TrainingConfig

TINY = Path(__file__).parents[4] / "examples" / "llm" / "tiny.yaml"
GIB = 2**30


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Check Qwen3-8B on devices of so many GiB."""

    def run(*overrides, gib, ranks=1):
        hardware = None if gib is None else Hardware("NVIDIA H200", gib * GIB)
        monkeypatch.setattr(CpuDevice, "hardware", lambda self: hardware)
        text = tmp_path / "text.txt"
        text.write_text("some text\n" * 200)
        own = [f"data.train={text}", "data.validation=[]", "train.validate_every=null", f"output={tmp_path / 'run'}"]
        own += ["model=qwen3-8b", "model.overrides={}", "device=cpu", "precision=bf16", "data.sequence_length=4096"]
        own += ["train.global_batch_size=32"]
        return check_run(load_run(TrainingConfig, TINY, [*own, *overrides]), ranks)

    return run


def test_a_run_that_cannot_fit_is_a_fault_with_its_figures_and_the_nearest_that_fits(check):
    (fault,) = check(gib=80, ranks=8).faults
    assert fault.where == "memory"
    assert fault.what.startswith("needs ")
    assert "GiB a rank, NVIDIA H200 has 80.0 GiB (GiB: weights 15.3, gradients 30.5, optimizer 11.4" in fault.what
    assert fault.fix.startswith("layout.")
    assert " fits in " in fault.fix


def test_the_nearest_changes_as_few_keys_as_it_can(check):
    (fault,) = check("train.micro_batch_size=4", gib=100, ranks=8).faults
    assert fault.fix.split(" fits in ")[0].count("=") == 1


def test_a_run_that_fits_no_layout_of_its_ranks_is_told_how_many_it_needs(check):
    (fault,) = check(gib=80).faults
    assert "nearest: " in fault.fix
    assert " NVIDIA H200: layout." in fault.fix


def test_a_run_that_fits_has_no_fault_and_its_memory_is_told(check):
    found = check("layout.tensor=2", "train.micro_batch_size=1", gib=139, ranks=8)
    assert found.faults == []
    assert found.facts["memory"].startswith("about ")


def test_where_the_devices_memory_is_not_known_nothing_is_claimed(check):
    assert check(gib=None).faults == []


@pytest.mark.parametrize(
    ("name", "bf16"), [("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA A100-SXM4-80GB", 312e12), ("Kunlun", 989e12)]
)
def test_a_device_gets_the_rates_of_its_kind_and_its_own_memory(name, bf16):
    accelerator = cluster_of(name, 70 * GIB, 4).accelerator
    assert (accelerator.name, accelerator.bf16, accelerator.memory) == (name, bf16, 70 * GIB)


def test_a_run_that_might_fit_after_all_is_not_refused(check):
    peak = float(check("layout.tensor=2", gib=1000, ranks=8).facts["memory"].split()[1])
    assert check("layout.tensor=2", gib=round(peak), ranks=8).faults == []
    assert check("layout.tensor=2", gib=round(0.9 * peak), ranks=8).faults != []
