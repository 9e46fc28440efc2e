"""Models of unlike parts: any tower with any projector and any language model, with the weights of their folders."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from vision_toys import (
    INTERNVL,
    LLAVA_ONEVISION,
    QWEN2_5_VL,
    QWEN3_VL,
    TEXT,
    VOCABULARY,
    Shown,
    batch_of,
    randomise,
)

from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_llm.convert import convert
from loong_llm.model import ModelSource, build_stages, open_model
from loong_vlm.source import open_vision_model

ONE = ParallelContext.single()
LLAMA = {"model_type": "llama", **TEXT, "hidden_size": 32, "num_key_value_heads": 1}
MIXTRAL = {
    "model_type": "mixtral", **TEXT, "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 12,
}  # fmt: skip
INTERNLM2 = {"model_type": "internlm2", **TEXT, "hidden_size": 32, "bias": False}
QWEN3 = {"model_type": "qwen3", **TEXT, "head_dim": 16}
QWEN2 = {"model_type": "qwen2", **TEXT}


def folder_of(hf: dict, where: Path) -> Path:
    """A folder with random weights of a model with or without a tower."""
    where.mkdir()
    (where / "config.json").write_text(json.dumps(hf))
    opened: ModelSource = open_vision_model(where) if "vision_config" in hf else open_model(where)
    (model,) = build_stages(opened, ONE, dtype=torch.float64, initialise="random")
    randomise(model)
    tensors: dict[str, torch.Tensor] = {}
    for parameter, placement in opened.weight_map.placements(model, ONE):
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            tensors.setdefault(piece.name, torch.empty(piece.global_shape, dtype=torch.float64))[piece.slices] = part
    save_file(tensors, where / "model.safetensors")
    return where


PAIRS = {
    "a Qwen2.5-VL tower and Llama": (QWEN2_5_VL, LLAMA, "composed"),
    "InternViT and Mixtral": (INTERNVL, MIXTRAL, "internvl"),
    "a Qwen3-VL tower and Qwen2": (QWEN3_VL, QWEN2, "composed"),
    "a Qwen3-VL tower and Qwen3": (QWEN3_VL, QWEN3, "qwen3_vl"),
    "a RICE tower and Qwen3": (LLAVA_ONEVISION, QWEN3 | {"hidden_size": 32}, "llava_onevision1_5"),
    "a RICE tower and InternLM2": (LLAVA_ONEVISION, INTERNLM2, "composed"),
    "InternViT and InternLM2": (INTERNVL, INTERNLM2, "composed"),
}


@pytest.mark.parametrize(("vision", "language", "family"), PAIRS.values(), ids=PAIRS)
def test_unlike_parts_make_a_model_that_has_their_weights_and_survives_a_folder(vision, language, family, tmp_path):
    tower, words = folder_of(vision, tmp_path / "tower"), folder_of(language, tmp_path / "words")
    source = open_vision_model("", tower=str(tower), language=str(words))
    assert source.family.name == family
    (model,) = build_stages(source, ONE, dtype=torch.float64)
    (own_tower,) = build_stages(open_vision_model(tower), ONE, dtype=torch.float64)
    (own_words,) = build_stages(open_model(words), ONE, dtype=torch.float64)
    for ours, theirs in ((model.tower, own_tower.tower), (model.language, own_words)):
        expected = dict(theirs.named_parameters())
        assert all(torch.equal(parameter, expected[name]) for name, parameter in ours.named_parameters())

    shown = Shown((1, 4, 4))
    batch = batch_of([[3, shown, 2], [4], [shown, shown, 3]], source.parts)
    logits = model.logits(batch)
    assert logits.shape == (batch.tokens.shape[0], VOCABULARY)
    model(batch).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())

    written = _write(source, model, tmp_path / "whole")
    convert(written, tmp_path / "copy", open_model=open_vision_model)
    (again,) = build_stages(open_vision_model(tmp_path / "copy"), ONE, dtype=torch.float64)
    assert torch.equal(again.logits(batch), logits)


def test_a_projector_of_one_family_joins_the_tower_and_the_language_model_of_others(tmp_path):
    tower, words = folder_of(LLAVA_ONEVISION, tmp_path / "tower"), folder_of(INTERNLM2, tmp_path / "words")
    squares = folder_of(QWEN3_VL, tmp_path / "squares")
    source = open_vision_model(str(squares), tower=str(tower), language=str(words))
    kinds = source.parts.tower_kind.name, source.parts.projector_kind.name, source.parts.language.family.name
    assert (source.family.name, *kinds) == ("composed", "rice", "qwen3_vl_merger", "internlm2")
    (model,) = build_stages(source, ONE, dtype=torch.float64)
    shown = Shown((1, 4, 4))
    film = Shown((3, 2, 4), "video", 1.0)
    batch = batch_of([[3, shown, 2], [film, 3]], source.parts)
    model(batch).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_class_token_that_is_new_is_drawn(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAVA_ONEVISION))
    (model,) = build_stages(open_vision_model(tmp_path), ONE, dtype=torch.float64, initialise="random")
    assert 0 < model.tower.class_token.std() < 0.1


def test_text_alone_is_to_a_grafted_language_model_what_it_was(tmp_path):
    tower, words = folder_of(QWEN3_VL, tmp_path / "tower"), folder_of(QWEN3, tmp_path / "words")
    source = open_vision_model("", tower=str(tower), language=str(words))
    (model,) = build_stages(source, ONE, dtype=torch.float64)
    (alone,) = build_stages(open_model(words), ONE, dtype=torch.float64)
    batch = batch_of([[9], [4]], source.parts)
    from loong_core.data.batch import PackedBatch

    text = PackedBatch.from_lengths(batch.tokens, batch.labels, [9, 4])
    torch.testing.assert_close(model.logits(batch), alone.logits(text), rtol=1e-12, atol=1e-12)


def test_bad_input_a_projector_that_does_not_fit_is_refused_with_the_widths(tmp_path):
    tower, words = folder_of(QWEN2_5_VL, tmp_path / "tower"), folder_of(QWEN2, tmp_path / "words")
    with pytest.raises(
        UserError, match=r"takes features 16 wide to a language model of width 32; these parts are 16 and"
    ):
        open_vision_model("", tower=str(tower), projector=str(tower), language=str(words))


def test_bad_input_a_tower_that_hands_patches_out_row_by_row_takes_no_merger_of_squares(tmp_path):
    tiles, squares = folder_of(INTERNVL, tmp_path / "tiles"), folder_of(QWEN3_VL, tmp_path / "squares")
    with pytest.raises(UserError, match="this tower hands patches out row by row; give it a pixel_shuffle projector"):
        open_vision_model(str(squares), tower=str(tiles))


def test_bad_input_a_folder_whose_projector_and_language_model_do_not_fit_is_refused_with_the_widths(tmp_path):
    hf = {**QWEN2_5_VL, "vision_config": {**QWEN2_5_VL["vision_config"], "out_hidden_size": 20}}
    (tmp_path / "config.json").write_text(json.dumps(hf))
    with pytest.raises(UserError, match=r"makes features of width 20, the language model is \d+ wide"):
        open_vision_model(tmp_path)


def test_a_part_alone_is_not_a_model(tmp_path):
    with pytest.raises(UserError, match="tower and language are both named"):
        open_vision_model("", tower=str(tmp_path))


def _write(source, model, folder: Path) -> Path:
    folder.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    for parameter, placement in source.weight_map.placements(model, ONE):
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            tensors.setdefault(piece.name, torch.empty(piece.global_shape, dtype=part.dtype))[piece.slices] = part
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(source.hf_config))
    return folder
