"""What a user may call a model, and what is said when it cannot be opened or filled."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from toy_models import CONFIGS, reference, save

from loong_core.checkpoint.hf_reader import WeightsError
from loong_core.errors import ConfigError, UserError
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.model import build_stages, open_model
from loong_llm.model_config import layout_faults

ONE = ParallelContext.single()
TIED = CONFIGS["qwen3, tied, biased"]


def test_a_name_opens_a_config_without_weights():
    source = open_model("Qwen3-0.6B")
    assert (source.config.num_layers, source.weights, source.tokenizer_dir) == (28, None, None)
    assert source.family.name == "qwen3"


def test_overrides_reach_the_decoder_and_the_exported_config(tmp_path):
    config = {"model_type": "qwen3", "layer_types": ["full_attention"] * 2, **TIED}
    config["rope_parameters"] = {"rope_theta": 1e4, "rope_type": "default"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = open_model(tmp_path, {"num_hidden_layers": 3, "rope_parameters": {"rope_theta": 5e5}})
    assert source.config.num_layers == 3
    assert source.config.attention.rotary.theta == 5e5
    assert source.hf_config["layer_types"] == ["full_attention"] * 3
    assert source.hf_config["rope_parameters"] == {"rope_theta": 5e5, "rope_type": "default"}


def test_overrides_without_effect_are_faults_told_together(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TIED | {"rope_parameters": {"rope_theta": 1e4}}))
    with pytest.raises(ConfigError) as caught:
        open_model(tmp_path, {"hiden_size": 32, "rope_theta": 1e6})
    message = str(caught.value)
    assert (
        "model.overrides.hiden_size: is not a key of the model's config.json (the nearest key is hidden_size)"
        in message
    )
    assert "model.overrides.rope_theta: this config.json has rope_parameters in its place" in message


def test_a_folder_that_is_not_there_is_told_from_a_name_that_is_not_known(tmp_path):
    with pytest.raises(UserError, match="there is no such folder"):
        open_model(tmp_path / "absent")
    with pytest.raises(UserError, match=r"no model is named 'llama-8b'; near it: .*llama3-8b"):
        open_model("llama-8b")
    with pytest.raises(UserError, match=r"config\.json is missing"):
        open_model(tmp_path)


def test_layouts_are_checked_against_the_model():
    config = open_model("qwen3-0.6b", {"intermediate_size": 3000}).config
    messages = [str(fault) for fault in layout_faults(config, Layout(tensor=16, expert=2), 16)]
    assert any("16 does not divide the model's feed-forward width of 3000" in message for message in messages)
    assert any("the model has no experts" in message for message in messages)


def test_weights_are_loaded_when_there_are_some_and_drawn_otherwise(tmp_path):
    source = open_model(save(reference(TIED), tmp_path))
    (loaded,) = build_stages(source, ONE)
    (drawn,) = build_stages(source, ONE, initialise="random")
    stored = load_file(tmp_path / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(loaded.embedding.weight, stored.float())
    assert not torch.equal(drawn.embedding.weight, stored.float())


def test_weights_that_are_wanted_but_absent_are_an_error():
    with pytest.raises(UserError, match="has a config but no weights to load"):
        build_stages(open_model("qwen3-0.6b", TIED | {"head_dim": 8}), ONE, initialise="weights")


def test_a_pickle_is_not_read_and_not_passed_over(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TIED))
    (tmp_path / "pytorch_model.bin").write_bytes(b"not looked at")
    with pytest.raises(UserError, match=r"pytorch_model\.bin, a pickle, .* convert it to safetensors"):
        build_stages(open_model(tmp_path), ONE)


def test_every_fault_of_the_weights_is_told_at_once(tmp_path):
    tensors = load_file(save(reference(TIED), tmp_path) / "model.safetensors")
    del tensors["model.norm.weight"]
    tensors["model.layers.0.mlp.up_proj.weight"] = torch.zeros(40, 23)
    tensors["model.layers.7.mlp.up_proj.weight"] = torch.zeros(40, 24)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        build_stages(open_model(tmp_path), ONE)
    message = str(caught.value)
    assert "3 faults in the weights of" in message
    assert "model.norm.weight [24] is missing" in message
    assert "model.layers.0.mlp.up_proj.weight is [40, 23], by config.json it is [40, 24]" in message
    assert "model.layers.7.mlp.up_proj.weight [40, 24] is not a tensor of the model" in message
    assert str(tmp_path / "model.safetensors") in message


def test_numbers_that_are_not_finite_are_counted_by_tensor(tmp_path):
    tensors = load_file(save(reference(TIED), tmp_path) / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    tensors["model.layers.1.mlp.down_proj.weight"][0, :2] = float("inf")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as caught:
        build_stages(open_model(tmp_path), ONE)
    assert "model.norm.weight has 1 NaN and 0 Inf among 24 numbers" in str(caught.value)
    assert "model.layers.1.mlp.down_proj.weight has 0 NaN and 2 Inf among 960 numbers" in str(caught.value)


def test_what_older_checkpoints_hold_beside_the_weights_is_accepted(tmp_path):
    tensors = load_file(save(reference(TIED), tmp_path) / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    save_file(tensors, tmp_path / "model.safetensors")
    (model,) = build_stages(open_model(tmp_path), ONE)
    assert model.head.weight is model.embedding.weight


def test_a_second_copy_of_a_tied_table_must_be_equal(tmp_path):
    tensors = load_file(save(reference(TIED), tmp_path) / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["lm_head.weight"][5:7] += 1
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=r"2 rows of lm_head\.weight differ from model\.embed_tokens\.weight"):
        build_stages(open_model(tmp_path), ONE)
