"""The named sizes of mixtures of experts: their parameters, those that a token meets, and their tensors' names."""

import pytest
from safetensors import safe_open

from loong_core.nn.decoder import Decoder
from loong_core.parallel.context import ParallelContext
from loong_llm.families.registry import find_family, named_config

PARAMETERS = {
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "qwen3-coder-30b-a3b": (30_532_122_624, 3_353_032_704),
    "qwen3-235b-a22b": (235_093_634_560, 22_190_763_520),
    "qwen3-480b-a35b": (480_154_875_392, 35_474_765_312),
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "mixtral-8x22b": (140_620_634_112, 39_152_031_744),
}
"""Of transformers' class of each: all parameters, and those left without the experts that a token does not choose."""


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_built_on_the_meta_device_has_the_published_number_of_parameters(name):
    hf = named_config(name)
    family = find_family(hf)
    config = family.decoder_config(hf)
    context = ParallelContext.single("meta")
    model = Decoder(config, context)
    whole, active = PARAMETERS[name]
    assert sum(parameter.numel() for parameter in model.parameters()) == whole
    assert config.parameter_count() == family.named_sizes()[name] == whole
    table = config.vocab_size * config.hidden_size
    norms = config.num_layers * 2 * config.hidden_size + config.hidden_size
    if config.attention.qk_norm:
        norms += config.num_layers * 2 * config.attention.head_dim
    assert config.matmul_parameters() + table + norms == active
    for parameter, placement in family.weight_map(config).placements(model, context):
        assert placement.shape == parameter.shape


def test_floating_point_operations_count_the_experts_that_a_token_chooses():
    config = find_family(named_config("qwen3-30b-a3b")).decoder_config(named_config("qwen3-30b-a3b"))
    attention = 2048 * 128 * (32 + 2 * 4) + 32 * 128 * 2048
    layer = attention + 2048 * 128 + 8 * 3 * 2048 * 768
    matrices = 48 * layer + 151936 * 2048
    assert config.flops_per_token(8192) == 6 * matrices + 6 * 48 * 32 * 128 * 8192


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "mixtral-8x7b"])
def test_the_weight_map_names_the_tensors_that_transformers_writes(name, tmp_path):
    from transformers import AutoConfig, AutoModelForCausalLM

    small = {"hidden_size": 16, "intermediate_size": 8, "moe_intermediate_size": 8, "vocab_size": 11, "head_dim": 4}
    hf = named_config(name) | small | {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2}
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**hf)).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        written = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    family = find_family(hf)
    assert family.weight_map(family.decoder_config(hf)).tensors(1) == written


@pytest.mark.parametrize("name", PARAMETERS)
def test_transformers_reads_each_config_as_we_do(name):
    from transformers import AutoConfig

    hf = named_config(name)
    ours = find_family(hf).decoder_config(hf)
    theirs = AutoConfig.for_model(**hf)
    router = ours.mixtures[0].router
    assert (theirs.num_local_experts, theirs.num_experts_per_tok) == (router.num_experts, router.top_k)
    assert getattr(theirs, "norm_topk_prob", True) == router.normalise
    assert theirs.rope_parameters["rope_theta"] == ours.attention.rotary.theta
    assert (theirs.rms_norm_eps, theirs.vocab_size) == (ours.norm_eps, ours.vocab_size)


def test_faults_of_a_config_are_told_together():
    hf = named_config("qwen3-30b-a3b") | {"num_experts_per_tok": 129, "router_aux_loss_scope": "all", "hidden_act": "x"}
    with pytest.raises(Exception, match="3 faults") as error:
        find_family(hf).decoder_config(hf)
    assert "is 129, of 128 experts" in str(error.value)


def test_experts_may_be_counted_under_either_key():
    hf = named_config("qwen3-30b-a3b")
    renamed = {key: value for key, value in hf.items() if key != "num_experts"} | {"num_local_experts": 128}
    family = find_family(hf)
    assert family.decoder_config(renamed) == family.decoder_config(hf)
