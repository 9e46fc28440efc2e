"""Contradictions and values without effect are faults before anything runs."""

import pytest

from loong_core.config import RunConfig, load_run
from loong_core.config.checks import batch_faults, run_faults
from loong_core.parallel.layout import Layout


def found(*overrides):
    loaded = load_run(RunConfig, None, ["output=x", *overrides])
    assert loaded.faults == []
    return [str(fault) for fault in run_faults(loaded.config, loaded.given)]


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "train.steps: is missing, and so is train.epochs"),
        (["train.steps=5", "train.epochs=1"], "set one of them to null"),
        (["train.steps=5", "train.stop_at=6"], "train.stop_at: is 6, beyond the run's 5 steps"),
        (["train.steps=5", "train.warmup_steps=3", "train.decay_steps=3"], "2 of 5 steps are left after warm-up"),
        (["train.steps=5", "train.min_lr=1.0"], "train.min_lr: is 1, above train.lr 0.0003"),
        (["train.steps=5", "train.schedule=constant", "train.decay_steps=2"], "train.decay_steps: would be ignored"),
        (["train.steps=5", "train.profile.memory=true"], "train.profile.memory: would be ignored"),
        (["train.steps=5", "train.profile.steps=[3, 2]"], "begins at 3 and ends at 2"),
        (["train.steps=5", "train.profile.steps=[3, 8]"], "ends at 8, beyond"),
        (["train.steps=5", "train.moments=bf16", "train.beta2=0.999"], "train.beta2: is 0.999, and train.moments=bf16"),
        (["train.steps=5", "engine=fsdp", "megatron.overlap=true"], "megatron.overlap: would be ignored"),
        (["train.steps=5", "layout.virtual_pipeline=2"], "layout.virtual_pipeline: would be ignored"),
        (["train.steps=5", "recompute.mode=full", "recompute.blocks=2"], "while recompute.blocks chooses some"),
        (["train.steps=5", "engine=fsdp", "fsdp.compile=true", "offload=full"], "offload: moves what compiled layers"),
    ],
)
def test_what_contradicts_itself_or_has_no_effect_is_said(overrides, said):
    (fault,) = found(*overrides)
    assert said in fault


def test_a_tracker_that_is_not_installed_is_a_fault_that_names_its_extra(monkeypatch):
    monkeypatch.setattr("loong_core.config.checks.find_spec", lambda name: None)
    (fault,) = found("train.steps=5", "logging.tensorboard=true")
    assert "logging.tensorboard: tensorboard is not installed" in fault
    assert "pip install 'loong-core[tensorboard]'" in fault


def test_a_default_written_out_asks_for_nothing():
    assert found("train.steps=5", "train.schedule=constant", "train.decay_steps=null", "train.min_lr=0.0") == []


def batch_said(layout, world_size, *overrides):
    config = load_run(RunConfig, None, ["output=x", "train.global_batch_size=12", *overrides]).config
    return [str(fault) for fault in batch_faults(config, layout, world_size)]


def test_a_global_batch_that_does_not_divide_is_told_with_its_numbers():
    assert batch_said(Layout(), 2, "train.micro_batch_size=4") == [
        "train.global_batch_size: is 12, which micro_batch_size 4 x 2 data ranks = 8 does not divide "
        "(the nearest that it divides is 16)"
    ]
    assert batch_said(Layout(), 2, "train.micro_batch_size=3") == []


def test_an_interleaved_pipeline_needs_microbatches_that_its_ranks_divide():
    (fault,) = batch_said(Layout(pipeline=2, virtual_pipeline=2), 2, "train.micro_batch_size=4")
    assert "is 12, 3 microbatches a rank, which layout.pipeline 2 does not divide" in fault
    assert batch_said(Layout(pipeline=2, virtual_pipeline=2), 2, "train.micro_batch_size=3") == []
