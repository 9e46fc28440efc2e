"""Every named size is there, reads, and has as many parameters as the published model."""

import pytest
import torch

from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_vlm.families.registry import named_vision_config, named_vision_configs
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


def test_a_name_that_is_not_known_brings_the_nearest():
    with pytest.raises(UserError, match=r"no vision-language model is named 'qwen2.5-vl-8b'; near it: qwen2.5-vl-"):
        named_vision_config("qwen2.5-vl-8b")
