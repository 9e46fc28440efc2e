"""Runs on a small composed model: stages, parts, resuming, the folder that is left, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from digit_runs import run_config, weights, write_parts
from safetensors.torch import load_file

from loong_core.config.loading import Loaded
from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.errors import UserError
from loong_core.train.metrics import read_rows
from loong_vlm import quickstart as demo
from loong_vlm.check import check_run
from loong_vlm.data.arrangement import arrange
from loong_vlm.data.batch import Pictures
from loong_vlm.data.media import Medium, Stretch
from loong_vlm.digit_questions import digit_pictures, digit_questions, split
from loong_vlm.inference import open_vision_folder
from loong_vlm.recipes.fine_tuning import fine_tune
from loong_vlm.recipes.training_config import PartSection, PartsSection, VisionLoraSection, VisionModelSection


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return write_parts(tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="module")
def full(parts, tmp_path_factory):
    output = tmp_path_factory.mktemp("full") / "run"
    fine_tune(run_config(parts, output))
    return output


def test_a_run_that_was_stopped_ends_with_the_same_bits(full, parts, tmp_path):
    fine_tune(run_config(parts, tmp_path / "run", train={"stop_at": 2}))
    assert not (tmp_path / "run" / "hf").exists()
    fine_tune(run_config(parts, tmp_path / "run"))
    expected, found = weights(full), weights(tmp_path / "run")
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    losses = [row["loss"] for row in read_rows(full / "metrics.jsonl")]
    assert [row["loss"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")] == losses


def test_transformers_opens_the_folder_and_computes_the_same_logits(full, parts):
    from transformers import AutoModelForImageTextToText

    theirs = AutoModelForImageTextToText.from_pretrained(full / "hf", attn_implementation="sdpa").eval()
    ours = open_vision_folder(full / "hf", torch.device("cpu"))
    media = [Medium("image", Stretch(parts / "data" / "digits" / f"{number}.png")) for number in (3, 9)]
    sample = ours.encoder.prompt("Their sum?", media)
    ids = torch.from_numpy(sample.ids).long()
    pictures = [ours._picture(placed) for placed in sample.media]
    text = PackedBatch.from_lengths(ids, torch.full_like(ids, IGNORED_LABEL), [len(ids)])
    batch = arrange(text, Pictures.join(pictures), ours.source.parts)
    found = ours.model.logits(batch)
    kinds = (ids == ours.source.parts.meeting.image_token).int()
    with torch.no_grad():
        expected = theirs(
            input_ids=ids[None],
            mm_token_type_ids=kinds[None],
            pixel_values=batch.pictures.patches,
            image_grid_thw=batch.pictures.grid_thw,
        ).logits[0]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_alignment_moves_the_projector_only(full, parts, tmp_path):
    model = VisionModelSection(source=str(full / "hf"))
    fine_tune(run_config(parts, tmp_path / "run", stage="align", model=model))
    before, after = weights(full), weights(tmp_path / "run")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if ".merger." in name}


@pytest.mark.parametrize("engine", ["megatron", "fsdp"])
def test_a_part_with_rate_zero_stays_and_a_frozen_one_too(engine, full, parts, tmp_path):
    sections = PartsSection(tower=PartSection(lr_scale=0.0), language=PartSection(freeze=True))
    model = VisionModelSection(source=str(full / "hf"))
    fine_tune(run_config(parts, tmp_path / "run", parts=sections, model=model, engine=engine))
    before, after = weights(full), weights(tmp_path / "run")
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if ".merger." in name}


def test_adapters_go_on_the_parts_that_are_named(full, parts, tmp_path):
    model = VisionModelSection(source=str(full / "hf"))
    lora = VisionLoraSection(parts=["tower"], rank=2, alpha=4.0)
    fine_tune(run_config(parts, tmp_path / "run", model=model, lora=lora))
    names = load_file(tmp_path / "run" / "adapter" / "adapter_model.safetensors")
    assert names
    assert all(".visual.blocks." in name or ".model.visual." in name for name in names)


def faults(config):
    return [str(fault) for fault in check_run(Loaded(config, [], frozenset()), 1).faults]


def test_every_fault_of_parts_is_told_before_the_run(parts, tmp_path):
    sections = PartsSection(tower=PartSection(freeze=True, lr_scale=0.5))
    config = run_config(parts, tmp_path / "run", parts=sections)
    (told,) = faults(config)
    assert "parts.tower.lr_scale: would be ignored: the part is frozen" in told
    every = PartsSection(**{name: PartSection(freeze=True) for name in ("tower", "projector", "language")})
    assert "every part is frozen" in faults(run_config(parts, tmp_path / "run", parts=every))[0]


def test_bad_input_a_tokenizer_without_the_image_token_is_refused(parts, tmp_path):
    config = run_config(parts, tmp_path / "run", tokenizer="bytes")
    config = config.model_copy(update={"data": config.data.model_copy(update={"chat_template": "plain"})})
    told = faults(config)
    assert any("has no token <|image_pad|>" in each for each in told)


def test_bad_input_a_missing_image_is_named_before_the_first_step(parts, tmp_path):
    line = {"messages": [
        {"role": "user", "content": [{"type": "image", "image": "none.png"}, {"type": "text", "text": "?"}]},
        {"role": "assistant", "content": "1"},
    ]}  # fmt: skip
    (tmp_path / "bad.jsonl").write_text(json.dumps(line) + "\n")
    config = run_config(parts, tmp_path / "run")
    source = [config.data.train[0].model_copy(update={"path": str(tmp_path / "bad.jsonl")})]
    config = config.model_copy(update={"data": config.data.model_copy(update={"train": source})})
    with pytest.raises(UserError, match=r"none\.png"):
        fine_tune(config)


def test_no_held_out_question_shows_a_picture_that_is_trained_on():
    _, digits = digit_pictures()
    training, held_out = split()
    assert not set(training.tolist()) & set(held_out.tolist())
    for kind in demo.TRAINED:
        for each in digit_questions(digits, held_out, kind, 50, seed=1):
            assert set(each.pictures) <= set(held_out.tolist())
            own = [int(digits[number]) for number in each.pictures]
            larger = "larger" if own[0] > own[-1] else "smaller"
            assert each.answer == {"which": str(own[0]), "sum": str(sum(own)), "compare": larger}[kind]
