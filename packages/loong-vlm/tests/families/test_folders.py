"""Folders in and out: every byte of every tensor, in each of the layouts that checkpoints come in."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from vision_toys import (
    INTERNVL_6B,
    INTERNVL_MOE,
    LLAVA_ONEVISION,
    QWEN2_5_VL,
    QWEN3_VL_MOE,
    QWEN3_VL_TIED,
    Shown,
    batch_of,
    reference,
    reference_inputs,
    save,
)

from loong_core.parallel.context import ParallelContext
from loong_llm.convert import convert
from loong_llm.model import build_stages
from loong_vlm.source import VisionModelSource, open_vision_model

ONE = ParallelContext.single()
CONFIGS = {
    "qwen2.5-vl": QWEN2_5_VL,
    "qwen3-vl, tied": QWEN3_VL_TIED,
    "qwen3-vl, mixture of experts": QWEN3_VL_MOE,
    "internvl, 6b tower": INTERNVL_6B,
    "internvl, mixture of experts": INTERNVL_MOE,
}


def write_layout(source: VisionModelSource, number: int, folder: Path) -> Path:
    """The source's model written in one of its family's layouts."""
    (model,) = build_stages(source, ONE, dtype=torch.float64)
    tensors: dict[str, torch.Tensor] = {}
    layout = source.family.weight_maps(source.parts)[number]
    for parameter, placement in layout.placements(model, ONE):
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            whole = tensors.setdefault(piece.name, torch.empty(piece.global_shape, dtype=part.dtype))
            whole[piece.slices] = part
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(source.hf_config))
    return folder


@pytest.mark.parametrize(
    "hf", [*CONFIGS.values(), LLAVA_ONEVISION], ids=[*CONFIGS, "llava-onevision-1.5, without a class of transformers"]
)
def test_a_folder_in_any_layout_is_read_and_written_bit_by_bit(hf, tmp_path):
    first = open_vision_model(save(reference(hf), tmp_path / "theirs"))
    batch = batch_of([[3, Shown((1, 4, 4)), 2]], first.parts)
    (model,) = build_stages(first, ONE, dtype=torch.float64)
    expected = model.logits(batch)
    for number in range(len(first.family.weight_maps(first.parts))):
        folder = write_layout(first, number, tmp_path / str(number))
        source = open_vision_model(folder)
        (again,) = build_stages(source, ONE, dtype=torch.float64)
        assert torch.equal(again.logits(batch), expected)
        convert(folder, tmp_path / f"{number}-out", open_model=open_vision_model)
        written = load_file(tmp_path / f"{number}-out" / "model.safetensors")
        stored = load_file(folder / "model.safetensors")
        assert written.keys() == stored.keys()
        assert all(torch.equal(written[name], stored[name]) for name in stored)


@pytest.mark.parametrize("hf", CONFIGS.values(), ids=CONFIGS)
def test_transformers_opens_what_the_family_writes(hf, tmp_path):
    theirs = reference(hf)
    source = open_vision_model(save(theirs, tmp_path / "theirs"))
    folder = write_layout(source, 0, tmp_path / "ours")
    opened = type(theirs).from_pretrained(folder, dtype=torch.float64)
    expected = dict(theirs.named_parameters())
    assert all(torch.equal(parameter, expected[name]) for name, parameter in opened.named_parameters())


@pytest.mark.parametrize("language", ["llama", "internlm2"])
def test_the_authors_own_form_of_internvl_is_the_same_model(language, tmp_path):
    """That of InternVL2.5 8b and 26b holds InternLM2, which transformers' form calls Llama."""
    theirs = reference(INTERNVL_6B)
    source = open_vision_model(save(theirs, tmp_path / "theirs"))
    folder = chat_form(source, tmp_path / "chat", internlm2=language == "internlm2")
    (folder / "added_tokens.json").write_text(json.dumps({"<IMG_CONTEXT>": 5}))
    chat = open_vision_model(folder)
    assert (chat.family.name, chat.parts.language.family.name) == ("internvl_chat", language)
    (ours,) = build_stages(chat, ONE, dtype=torch.float64)
    batch = batch_of([[3, Shown((2, 4, 4)), 2]], chat.parts)
    expected = theirs(**reference_inputs(batch, 0, source.parts)).logits[0]
    torch.testing.assert_close(ours.logits(batch), expected, rtol=1e-9, atol=1e-11)
    convert(folder, tmp_path / "out", open_model=open_vision_model)
    written, stored = (load_file(each / "model.safetensors") for each in (tmp_path / "out", folder))
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[name], stored[name]) for name in stored)


def test_a_chat_form_without_its_placeholder_is_refused(tmp_path):
    from loong_core.errors import UserError

    source = open_vision_model(save(reference(INTERNVL_6B), tmp_path / "theirs"))
    with pytest.raises(UserError, match="img_context_token_id"):
        open_vision_model(chat_form(source, tmp_path / "chat"))


def chat_form(source: VisionModelSource, folder: Path, *, internlm2: bool = False) -> Path:
    """A folder in the form of `internvl_chat`, written tensor by tensor from transformers' form of a 6b tower."""
    assert source.weights is not None
    stored = load_file(source.weights.path / "model.safetensors")
    new: dict[str, torch.Tensor] = {}
    block = {
        "layernorm_before": "norm1", "layernorm_after": "norm2", "attention.projection_layer": "attn.proj",
        "attention.q_norm": "attn.q_norm", "attention.k_norm": "attn.k_norm", "lambda_1": "ls1", "lambda_2": "ls2",
    }  # fmt: skip
    other = {
        "vision_tower.embeddings.cls_token": "vision_model.embeddings.class_embedding",
        "vision_tower.embeddings.position_embeddings": "vision_model.embeddings.position_embedding",
        "vision_tower.embeddings.patch_embeddings.projection": "vision_model.embeddings.patch_embedding",
        "vision_tower.encoder.layer": "vision_model.encoder.layers",
        "multi_modal_projector.layer_norm": "mlp1.0",
        "multi_modal_projector.linear_1": "mlp1.1",
        "multi_modal_projector.linear_2": "mlp1.3",
    }
    for name, values in stored.items():
        chat = name
        for old, called in {**block, **other}.items():
            chat = chat.replace(old, called)
        if "attention.q_proj" in name:
            parts = [stored[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            new[chat.replace("attention.q_proj", "attn.qkv")] = torch.cat(parts)
        elif "vision_tower" not in name or not ("k_proj" in name or "v_proj" in name):
            new[chat] = values
    vision, text = source.hf_config["vision_config"], source.hf_config["text_config"]
    if internlm2:
        new, text = as_internlm2(new, text), {**text, "model_type": "internlm2", "bias": False}
    config = {
        "model_type": "internvl_chat", "downsample_ratio": 0.5, "select_layer": -1, "ps_version": "v2",
        "llm_config": text,
        "vision_config": {
            "model_type": "intern_vit_6b", "hidden_size": 16, "num_hidden_layers": vision["num_hidden_layers"],
            "num_attention_heads": 2, "intermediate_size": 20, "image_size": 8, "patch_size": 2, "hidden_act": "gelu",
            "norm_type": "rms_norm", "qk_normalization": True, "qkv_bias": False, "initializer_factor": 0.1,
        },
    }  # fmt: skip
    folder.mkdir()
    save_file(new, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def as_internlm2(tensors: dict[str, torch.Tensor], text: dict) -> dict[str, torch.Tensor]:
    """Llama's tensors as InternLM2's: for each key-value head its queries, its key and its value in one tensor."""
    groups, size = text["num_key_value_heads"], text["hidden_size"] // text["num_attention_heads"]
    names = {
        "model.embed_tokens": "model.tok_embeddings", "language_model.lm_head": "language_model.output",
        "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3", "mlp.down_proj": "feed_forward.w2",
    }  # fmt: skip
    new = {}
    for name, values in tensors.items():
        called = name
        for old, theirs in names.items() if name.startswith("language_model.") else ():
            called = called.replace(old, theirs)
        if "self_attn.q_proj" in name:
            parts = [tensors[name.replace("q_proj", f"{letter}_proj")] for letter in "qkv"]
            joined = torch.cat([part.view(groups, -1, size, part.shape[1]) for part in parts], dim=1)
            new[called.replace("self_attn.q_proj", "attention.wqkv")] = joined.flatten(0, 2)
        elif not ("self_attn.k_proj" in name or "self_attn.v_proj" in name):
            new[called] = values
    return new
