"""Folders are converted tensor by tensor, open in transformers, and come back bit-equal."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_models import CONFIGS, batch_of, reference, save

from loong_core.checkpoint.hf_reader import WeightsError
from loong_core.errors import UserError
from loong_llm.convert import convert

HF = CONFIGS["qwen3, tied, biased"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "source").mkdir()
    model = reference(HF).to(torch.bfloat16)
    model.generation_config.max_new_tokens = 7
    save(model, tmp_path / "source")
    (tmp_path / "source/tokenizer.json").write_text("{}")
    return tmp_path / "source"


def tensors_of(path):
    found = {}
    for file in path.glob("*.safetensors"):
        found |= load_file(file)
    return found


def assert_same_bits(found, expected):
    assert {name: (t.dtype, t.shape) for name, t in found.items()} == {
        name: (t.dtype, t.shape) for name, t in expected.items()
    }
    for name, tensor in found.items():
        assert torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8)), name


def test_a_round_trip_through_other_files_and_a_wider_dtype_is_bit_exact(folder, tmp_path):
    wide = convert(folder, tmp_path / "wide", dtype="float32", max_shard_size=10_000)
    assert (wide.files > 1, wide.tensors) == (True, len(tensors_of(folder)))
    back = convert(wide.folder, tmp_path / "back", dtype="bf16")
    assert back.files == 1
    assert_same_bits(tensors_of(tmp_path / "back"), tensors_of(folder))
    assert json.loads((tmp_path / "back/config.json").read_text()) == json.loads((folder / "config.json").read_text())


def test_transformers_opens_what_was_written_and_computes_the_same(folder, tmp_path):
    from transformers import AutoModelForCausalLM

    convert(folder, tmp_path / "out", max_shard_size=10_000)
    tokens = batch_of([9]).tokens[None]
    ours, theirs = (
        AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64) for path in (tmp_path / "out", folder)
    )
    assert ours.generation_config.max_new_tokens == 7
    assert (tmp_path / "out/tokenizer.json").read_text() == "{}"
    assert torch.equal(ours(tokens).logits, theirs(tokens).logits)


def test_tensors_without_a_use_are_left_out_and_named(folder, tmp_path):
    tensors = tensors_of(folder)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    done = convert(folder, tmp_path / "out")
    assert done.left_out == ("lm_head.weight",)
    assert "lm_head.weight" not in tensors_of(tmp_path / "out")


def test_numbers_that_the_dtype_cannot_hold_are_told_and_nothing_is_left(folder, tmp_path):
    tensors = tensors_of(folder)
    tensors["model.norm.weight"][2] = 1e6
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"1 numbers of model\.norm\.weight .* are beyond float16, which ends at 65504"):
        convert(folder, tmp_path / "out", dtype="float16")
    assert [file.name for file in tmp_path.iterdir()] == ["source"]


def test_numbers_that_are_not_finite_are_not_passed_on(folder, tmp_path):
    tensors = tensors_of(folder)
    tensors["model.norm.weight"][2] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError, match=r"model\.norm\.weight has 1 NaN and 0 Inf among 24 numbers"):
        convert(folder, tmp_path / "out")


def test_a_dtype_that_is_none_is_refused_with_those_that_are():
    with pytest.raises(UserError, match="dtype 'int8' is not one of keep, float64"):
        convert("anywhere", "elsewhere", dtype="int8")
