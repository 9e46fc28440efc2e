"""Runs whose tower and projector have a layout of their own: they train what they would within the language model."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
import yaml
from digit_runs import run_config, weights, write_parts

from loong_core.config.loading import Loaded
from loong_core.config.sections import Fp8Section, LayoutSection, PartsSection
from loong_core.train.metrics import read_rows
from loong_vlm.check import check_run
from loong_vlm.recipes.fine_tuning import fine_tune
from loong_vlm.recipes.training_config import EncoderSection, VisionLoraSection, VisionModelSection

APART = EncoderSection()


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return write_parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def within(parts, tmp_path_factory):
    """A run with tower and projector within the language model."""
    output = tmp_path_factory.mktemp("within") / "run"
    fine_tune(run_config(parts, output))
    return output


def losses(output):
    return [row["loss"] for row in read_rows(output / "metrics.jsonl")]


def test_a_run_trains_the_same_and_one_that_was_stopped_ends_with_the_same_bits(within, parts, tmp_path):
    fine_tune(run_config(parts, tmp_path / "one", encoder=APART))
    assert losses(tmp_path / "one") == pytest.approx(losses(within), rel=1e-5)
    once = weights(tmp_path / "one")
    fine_tune(run_config(parts, tmp_path / "two", encoder=APART, train={"stop_at": 2}))
    fine_tune(run_config(parts, tmp_path / "two", encoder=APART))
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    assert all(torch.equal(value, once[name]) for name, value in weights(tmp_path / "two").items())


def test_a_run_goes_on_under_another_layout_of_its_parts(within, parts, tmp_path):
    output = tmp_path / "run"
    fine_tune(run_config(parts, output, train={"stop_at": 2}))
    apart = EncoderSection(recompute=PartsSection(mode="full"), offload_features=True)
    config = run_config(parts, output, encoder=apart, layout=LayoutSection(pipeline=2))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config.model_dump(mode="json")))
    done = subprocess.run(
        [sys.executable, "-m", "loong_vlm.cli.main", "train", str(tmp_path / "run.yaml"), "--nproc", "2"],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert losses(output) == pytest.approx(losses(within), rel=1e-4)


@pytest.mark.parametrize("engine", ["megatron", "fsdp"])
def test_alignment_moves_the_projector_only(engine, within, parts, tmp_path):
    model = VisionModelSection(source=str(within / "hf"))
    fine_tune(run_config(parts, tmp_path / "run", stage="align", model=model, engine=engine, encoder=APART))
    before, after = weights(within), weights(tmp_path / "run")
    assert {name for name in before if not torch.equal(before[name], after[name])} == {
        name for name in before if ".merger." in name
    }


def test_adapters_of_tower_and_language_model_are_merged_into_both(within, parts, tmp_path):
    model = VisionModelSection(source=str(within / "hf"))
    lora = VisionLoraSection(parts=["tower", "language"], rank=2, alpha=64.0, merge=True)
    fine_tune(run_config(parts, tmp_path / "run", model=model, lora=lora, encoder=APART))
    before, after = weights(within), weights(tmp_path / "run")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(".blocks." in name for name in moved)
    assert any(".layers." in name for name in moved)
    assert not any(".merger." in name for name in moved)


def faults(config, ranks=1):
    return [str(fault) for fault in check_run(Loaded(config, [], frozenset()), ranks).faults]


def test_every_fault_of_the_encoder_is_told_at_once(parts, tmp_path):
    section = EncoderSection(
        layout=LayoutSection(tensor=3, pipeline=2),
        recompute=PartsSection(mode="full", blocks=1),
        engine="fsdp",
    )
    told = "\n".join(faults(run_config(parts, tmp_path / "run", encoder=section), 6))
    assert "encoder.layout.tensor: is 3, and engine fsdp divides a model among data ranks only" in told
    assert "encoder.layout.pipeline: is 2 (a component that feeds another has it at 1)" in told
    assert "encoder.layout.tensor: is 3, which does not divide the 1 ranks (tensor 1 x context 1)" in told
    assert "which does not divide the vision tower's 4 attention heads and 128 feed-forward width" in told
    assert "encoder.recompute.mode: is full" in told


def test_the_nearest_tensor_degree_that_serves_is_named(parts, tmp_path):
    layout = LayoutSection(tensor=2, context=4)
    section = EncoderSection(layout=LayoutSection(tensor=8))
    (told,) = faults(run_config(parts, tmp_path / "run", encoder=section, layout=layout), 8)
    assert "encoder.layout.tensor: is 8, which does not divide the vision tower's 4 attention heads" in told
    assert "the nearest that serves is 4" in told


def test_patterns_that_match_nothing_of_the_encoder_are_told(parts, tmp_path):
    section = EncoderSection(recompute=PartsSection(modules=["language"]))
    (told,) = faults(run_config(parts, tmp_path / "run", encoder=section))
    assert "encoder.recompute.modules: 'language' matches nothing" in told
    fp8 = Fp8Section(overrides={"visual": "bf16"})
    (told,) = faults(run_config(parts, tmp_path / "run", encoder=APART, fp8=fp8))
    assert "fp8.overrides: visual would be ignored: the encoder makes no products in 8 bits" in told
