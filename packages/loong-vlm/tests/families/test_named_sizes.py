"""Every named size is there, reads, and has as many parameters as the published model."""

from math import prod
from unittest.mock import ANY

import pytest
import torch

from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_vlm.families.registry import find_vision_family, named_vision_config, named_vision_configs
from loong_vlm.model import VisionLanguageModel
from loong_vlm.model_config import read_vision_config

PARAMETERS = {
    "internvl2.5-26b": 25_514_186_112,
    "internvl2.5-38b": 38_388_164_992,
    "internvl2.5-78b": 78_408_318_336,
    "internvl2.5-8b": 8_075_365_376,
    "internvl3.5-14b": 15_119_523_840,
    "internvl3.5-241b-a28b": 240_699_370_368,
    "internvl3.5-30b-a3b": 30_848_730_112,
    "internvl3.5-38b": 38_390_405_504,
    "internvl3.5-8b": 8_528_318_464,
    "llava-onevision-1.5-4b": 4_741_610_528,
    "qwen2.5-vl-32b": 33_452_718_336,
    "qwen2.5-vl-3b": 3_754_622_976,
    "qwen2.5-vl-72b": 73_410_777_344,
    "qwen2.5-vl-7b": 8_292_166_656,
    "qwen3-vl-235b-a22b": 235_670_022_896,
    "qwen3-vl-30b-a3b": 31_070_754_032,
}
"""Parameters of transformers' class of each, tied tables once; of LLaVA-OneVision-1.5, which has none, as published."""


def test_all_named_sizes_are_shipped():
    assert named_vision_configs().keys() >= PARAMETERS.keys()


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_built_on_the_meta_device_has_the_published_number_of_parameters(name):
    model = read_vision_config(name)
    context = ParallelContext.single("meta")
    built = VisionLanguageModel(model.parts, context)
    assert sum(parameter.numel() for parameter in built.parameters()) == PARAMETERS[name]
    assert model.parts.parameter_count() == PARAMETERS[name]
    for weight_map in model.family.weight_maps(model.parts):
        for parameter, placement in weight_map.placements(built, context):
            assert placement.shape == parameter.shape


@pytest.mark.parametrize("name", ["internvl3.5-38b", "qwen2.5-vl-3b", "qwen3-vl-30b-a3b"])
def test_the_shapes_of_all_tensors_are_those_of_transformers(name):
    from transformers import AutoConfig, AutoModelForImageTextToText

    hf = dict(named_vision_config(name))
    few = {"num_hidden_layers": 1, "max_window_layers": 1}
    hf["text_config"] = hf["text_config"] | {key: value for key, value in few.items() if key in hf["text_config"]}
    with torch.device("meta"):
        theirs = AutoModelForImageTextToText.from_config(AutoConfig.for_model(**hf))
    model = read_vision_config(name, {"text_config": {"num_hidden_layers": 1}})
    inside = model.family.weight_maps(model.parts)[-1]  # by the names that the class itself has
    expected = {name: tuple(parameter.shape) for name, parameter in theirs.named_parameters()}
    assert inside.tensors(0) == expected


@pytest.mark.parametrize("name", [name for name in PARAMETERS if name.startswith("internvl")])
def test_every_internvl_opens_in_the_authors_own_form(name):
    hf = in_the_authors_form(named_vision_config(name))
    family = find_vision_family(hf)
    parts = family.parts(hf)
    assert family.name == "internvl_chat"
    assert parts.language.family.name == ("internlm2" if name in ("internvl2.5-8b", "internvl2.5-26b") else ANY)
    assert parts.parameter_count() == PARAMETERS[name]
    (weight_map,) = family.weight_maps(parts)
    tensors = weight_map.tensors(parts.language.config.num_layers)
    assert sum(prod(shape) for shape in tensors.values()) == PARAMETERS[name]
    assert all(each.startswith(("vision_model.", "mlp1.", "language_model.")) for each in tensors)


def in_the_authors_form(hf: dict) -> dict:
    """A config of `internvl` as `internvl_chat` tells it."""
    vision, text = hf["vision_config"], hf["text_config"]
    llm = {**text, "model_type": "internlm2", "bias": False} if text["model_type"] == "llama" else text
    return {
        "model_type": "internvl_chat", "downsample_ratio": hf["downsample_ratio"], "select_layer": -1,
        "ps_version": "v2", "img_context_token_id": hf["image_token_id"], "llm_config": llm,
        "vision_config": {
            "model_type": "intern_vit_6b", "image_size": 448, "patch_size": 14, "hidden_act": vision["hidden_act"],
            "hidden_size": vision["hidden_size"], "num_hidden_layers": vision["num_hidden_layers"],
            "num_attention_heads": vision["num_attention_heads"], "intermediate_size": vision["intermediate_size"],
            "norm_type": vision["norm_type"], "qk_normalization": vision["use_qk_norm"],
            "qkv_bias": vision["attention_bias"], "layer_norm_eps": vision["layer_norm_eps"],
        },
    }  # fmt: skip


def test_a_name_that_is_not_known_brings_the_nearest():
    with pytest.raises(UserError, match=r"no vision-language model is named 'qwen2.5-vl-8b'; near it: qwen2.5-vl-"):
        named_vision_config("qwen2.5-vl-8b")
