"""Parameters are frozen by patterns of their Hugging Face names."""

import pytest
from toy_models import CONFIGS

from loong_core.errors import UserError
from loong_core.nn.freezing import freeze
from loong_core.nn.name_patterns import chosen, matches
from loong_core.parallel.context import ParallelContext
from loong_llm.families.registry import find_family
from loong_llm.model import ModelSource, build_stages

CONTEXT = ParallelContext.single()


@pytest.fixture
def model():
    hf = CONFIGS["qwen3, head_dim unlike hidden/heads"]
    family = find_family(hf)
    source = ModelSource("toy", hf, family, family.decoder_config(hf))
    return source, build_stages(source, CONTEXT)


def trained(model, **patterns):
    source, stages = model
    count = freeze(stages, source.weight_map, source.config.num_layers, CONTEXT, **patterns)
    names = {name for name, parameter in stages[0].named_parameters() if parameter.requires_grad}
    assert count.trained == sum(parameter.numel() for parameter in stages[0].parameters() if parameter.requires_grad)
    assert count.total == sum(parameter.numel() for parameter in stages[0].parameters())
    return names


def test_a_pattern_matches_whole_components_anywhere():
    name = "model.layers.1.self_attn.q_proj.weight"
    for pattern in ("q_proj", "layers.1", "layers.*", "self_attn.q_proj", "model.layers.[0-3].*", name):
        assert matches(name, pattern)
    for pattern in ("q_pro", "layers.0", "proj", "layers.11", "attn.q_proj"):
        assert not matches(name, pattern)


def test_nothing_is_frozen_without_patterns(model):
    assert len(trained(model)) == len(list(model[1][0].parameters()))


def test_embeddings_and_the_first_layer_are_frozen(model):
    names = trained(model, frozen=("embed_tokens", "layers.0"))
    assert "embedding.weight" not in names
    assert not [name for name in names if name.startswith("layers.0.")]
    assert {"head.weight", "norm.weight", "layers.1.attention.qkv.weight"} <= names


def test_only_the_norms_are_trained(model):
    names = trained(model, trained=("*norm",))
    assert names == {name for name, _ in model[1][0].named_parameters() if "norm" in name}


def test_parts_of_one_parameter_cannot_be_parted(model):
    with pytest.raises(UserError, match=r"q_proj\.weight would be frozen and .*k_proj\.weight"):
        trained(model, frozen=("q_proj",))


def test_a_pattern_that_matches_nothing_names_the_nearest(model):
    with pytest.raises(UserError, match=r"train\.freeze: 'embed_token' matches nothing; did you mean embed_tokens\?"):
        trained(model, frozen=("embed_token",))


def test_freezing_everything_is_refused(model):
    with pytest.raises(UserError, match="leaves nothing to train"):
        trained(model, frozen=("*",))


def test_freezing_and_choosing_at_once_is_refused(model):
    with pytest.raises(UserError, match="give one of the two"):
        trained(model, frozen=("norm",), trained=("norm",))


def test_several_patterns_add_up():
    names = ["a.b", "a.c", "d.e"]
    assert chosen(names, ["b", "d"], "here") == {"a.b", "d.e"}
