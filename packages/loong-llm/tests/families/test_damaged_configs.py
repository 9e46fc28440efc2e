"""Whatever stands under a key of a config.json: it is served, or refused in words that name the key."""

import json

import pytest

from loong_core.errors import UserError
from loong_llm.families.registry import families
from loong_llm.model_config import read_model_config

WRONG = (
    None,
    "x",
    -1,
    0,
    1.5,
    float("nan"),
    float("inf"),
    10**400,
    True,
    [],
    [1],
    ["x"],
    {},
    {"a": 1},
    {"rope_type": []},
)


def named(family):
    """A shipped config of the family with every key that readers look at."""
    hf = dict(next(iter(family.named_configs().values())))
    return hf | {key: hf.get(key) for key in ("rope_parameters", "rope_scaling", "layer_types", *family.optional_keys)}


def answered(folder):
    """What is said of a config that is refused; None for one that is served."""
    try:
        read_model_config(folder)
    except UserError as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("family", families().values(), ids=lambda family: family.name)
def test_no_value_of_any_key_ends_in_a_traceback(family, tmp_path):
    whole = named(family)
    for key in whole:
        for value in WRONG:
            (tmp_path / "config.json").write_text(json.dumps(whole | {key: value}))
            answer = answered(tmp_path)
            assert answer is None or key in answer or key == "num_attention_heads", (key, value)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"model_type": "llama"}, "model.overrides.model_type: the model is of type qwen3"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers: is '2' (a positive integer is wanted)"),
        ({"max_position_embeddings": "long"}, "max_position_embeddings: is 'long'"),
        ({"eos_token_id": "</s>"}, "eos_token_id: is '</s>'"),
        ({"rope_parameters": 3}, "rope_parameters: is 3 (a mapping is wanted)"),
    ],
)
def test_an_override_of_another_kind_is_refused(overrides, words):
    with pytest.raises(UserError) as refused:
        read_model_config("qwen3-0.6b", overrides)
    assert words in str(refused.value)
