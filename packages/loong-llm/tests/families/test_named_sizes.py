"""Every named size is there, reads, and has as many parameters as the published model."""

import subprocess
import sys

import pytest
import torch

from loong_core.errors import UserError
from loong_core.nn.decoder import Decoder
from loong_core.parallel.context import ParallelContext
from loong_llm.families.registry import families, find_family, named_config, named_configs

PARAMETERS = {
    "internlm2.5-20b": 19_861_149_696,
    "internlm2.5-7b": 7_737_708_544,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama2-7b": 6_738_415_616,
    "llama3-70b": 70_553_706_496,
    "llama3-8b": 8_030_261_248,
    "llama3.1-405b": 405_853_388_800,
    "llama3.1-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "qwen-1.8b": 1_836_828_672,
    "qwen-14b": 14_167_290_880,
    "qwen-72b": 72_287_920_128,
    "qwen-7b": 7_721_324_544,
    "qwen1.5-0.5b": 463_987_712,
    "qwen1.5-1.8b": 1_836_828_672,
    "qwen1.5-14b": 14_167_290_880,
    "qwen1.5-32b": 32_512_218_112,
    "qwen1.5-4b": 3_950_369_280,
    "qwen1.5-72b": 72_287_920_128,
    "qwen1.5-7b": 7_721_324_544,
    "qwen2-0.5b": 494_032_768,
    "qwen2-1.5b": 1_543_714_304,
    "qwen2-72b": 72_706_203_648,
    "qwen2-7b": 7_615_616_512,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
}
"""Parameters of transformers' class of each, tied tables once; of those without one (`WITHOUT_CLASS`) as published."""

WITHOUT_CLASS = ("internlm2", "qwen-")


def test_all_named_sizes_are_shipped():
    assert named_configs().keys() >= PARAMETERS.keys()


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_built_on_the_meta_device_has_the_published_number_of_parameters(name):
    hf = named_config(name)
    family = find_family(hf)
    config = family.decoder_config(hf)
    context = ParallelContext.single("meta")
    model = Decoder(config, context)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    assert config.parameter_count() == family.named_sizes()[name] == PARAMETERS[name]
    for parameter, placement in family.weight_map(config).placements(model, context):
        assert placement.shape == parameter.shape


@pytest.mark.parametrize("name", ["llama2-7b", "llama3.1-8b", "qwen1.5-0.5b", "qwen2.5-3b", "qwen3-0.6b"])
def test_the_weight_map_names_the_tensors_that_transformers_has(name):
    from transformers import AutoConfig, AutoModelForCausalLM

    hf = named_config(name) | {"num_hidden_layers": 1}
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**hf))
    family = find_family(hf)
    expected = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert family.weight_map(family.decoder_config(hf)).tensors(1) == expected


@pytest.mark.parametrize("name", [name for name in PARAMETERS if not name.startswith(WITHOUT_CLASS)])
def test_transformers_reads_each_config_as_we_do(name):
    from transformers import AutoConfig

    hf = named_config(name)
    ours = find_family(hf).decoder_config(hf)
    theirs = AutoConfig.for_model(**hf)
    rotary = ours.attention.rotary
    assert (theirs.rope_parameters["rope_theta"], theirs.tie_word_embeddings) == (rotary.theta, ours.tie_embeddings)
    assert (theirs.rope_parameters["rope_type"] == "llama3") == (rotary.scaling is not None)
    assert (theirs.rms_norm_eps, theirs.vocab_size) == (ours.norm_eps, ours.vocab_size)


def test_a_name_that_is_not_known_brings_the_nearest():
    with pytest.raises(UserError, match=r"no model is named 'qwen3-8'; near it: qwen3-8b"):
        named_config("qwen3-8")


def test_names_and_sizes_are_listed_without_importing_torch():
    program = (
        "import sys\n"
        "from loong_llm.families.registry import families\n"
        "print(sum(len(family.named_sizes()) for family in families().values()), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(named_configs())), "False"]


def test_floating_point_operations_count_what_multiplies():
    config = families()["qwen3"].decoder_config(named_config("qwen3-0.6b"))
    attention = 1024 * 128 * (16 + 2 * 8) + 16 * 128 * 1024
    layer = attention + 3 * 1024 * 3072
    matrices = 28 * layer + 151936 * 1024
    assert config.flops_per_token(4096) == 6 * matrices + 6 * 28 * 16 * 128 * 4096
