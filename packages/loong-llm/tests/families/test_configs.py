"""What a config.json may ask for, and what is said when it asks for more."""

import pytest
from toy_models import SMALL

from loong_core.errors import ConfigError
from loong_core.nn.decoder_config import LinearScaling, Llama3Scaling
from loong_llm.families.llama import LLAMA
from loong_llm.families.qwen2 import QWEN2
from loong_llm.families.qwen3 import QWEN3

LLAMA_HF = {"model_type": "llama", **SMALL}


def test_rotary_parameters_are_read_in_the_old_form_and_the_new():
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    old = LLAMA_HF | {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **scaling}}
    new = LLAMA_HF | {"rope_parameters": {"rope_theta": 5e5, "rope_type": "llama3", **scaling}}
    rotary = LLAMA.decoder_config(old).attention.rotary
    assert rotary == LLAMA.decoder_config(new).attention.rotary
    assert (rotary.theta, rotary.scaling) == (5e5, Llama3Scaling(8.0, 1.0, 4.0, 16))


def test_the_oldest_form_of_scaling_says_type():
    config = LLAMA.decoder_config(LLAMA_HF | {"rope_scaling": {"type": "linear", "factor": 2}})
    assert config.attention.rotary.scaling == LinearScaling(2.0)


def test_all_faults_of_a_config_are_told_at_once():
    hf = LLAMA_HF | {"hidden_act": "gelu", "rms_norm_eps": "small", "rope_scaling": {"rope_type": "longrope"}}
    hf["vocab_sise"] = hf.pop("vocab_size")
    with pytest.raises(ConfigError) as caught:
        LLAMA.decoder_config(hf)
    message = str(caught.value)
    assert "hidden_act: 'gelu' is not supported by the llama family (supported: 'silu')" in message
    assert "rms_norm_eps: is 'small'" in message
    assert "'longrope' is not supported (supported: default, dynamic, linear, llama3, mrope)" in message
    assert "vocab_size: is missing (is it vocab_sise?)" in message


def test_scaling_without_its_numbers_is_a_fault():
    with pytest.raises(ConfigError, match="rope_type llama3 needs low_freq_factor, high_freq_factor"):
        LLAMA.decoder_config(LLAMA_HF | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}})


@pytest.mark.parametrize("family", [QWEN2, QWEN3], ids=["qwen2", "qwen3"])
@pytest.mark.parametrize(
    "wanted", [{"use_sliding_window": True}, {"layer_types": ["full_attention", "sliding_attention"]}]
)
def test_a_sliding_window_is_refused(family, wanted):
    with pytest.raises(ConfigError, match=r"only full_attention|use_sliding_window"):
        family.decoder_config({"model_type": family.name, **SMALL, **wanted})


def test_heads_that_groups_do_not_divide_are_a_fault():
    with pytest.raises(ConfigError, match=r"num_key_value_heads: 3 does not divide 4 heads"):
        LLAMA.decoder_config(LLAMA_HF | {"num_key_value_heads": 3})
