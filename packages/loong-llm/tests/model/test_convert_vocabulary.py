"""A vocabulary of another size: old rows stay bit for bit, new ones are what was asked for, transformers opens it."""

import json

import pytest
import torch
from safetensors.torch import load_file
from toy_models import CONFIGS, reference, save

from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_llm.convert import convert
from loong_llm.convert_vocabulary import NEW_ROWS, VocabularyResize
from loong_llm.model import build_stages, open_model

TABLES = ("model.embed_tokens.weight", "lm_head.weight")


@pytest.fixture(params=["qwen3, head_dim unlike hidden/heads", "qwen2, tied"], ids=["untied", "tied"])
def folder(request, tmp_path):
    return save(reference(CONFIGS[request.param]).float(), tmp_path / "source")


def tensors(path):
    return load_file(path / "model.safetensors")


@pytest.mark.parametrize("new_rows", NEW_ROWS)
def test_old_rows_stay_and_new_ones_are_as_named(folder, tmp_path, new_rows):
    convert(folder, tmp_path / "larger", vocabulary=VocabularyResize(70, new_rows))
    old, larger = tensors(folder), tensors(tmp_path / "larger")
    assert old.keys() == larger.keys()
    assert json.loads((tmp_path / "larger/config.json").read_text())["vocab_size"] == 70
    for name in larger:
        if name not in TABLES:
            assert torch.equal(larger[name], old[name])
            continue
        assert torch.equal(larger[name][:61], old[name])
        fresh, mean = larger[name][61:], old[name].double().mean(0)
        if new_rows == "zero":
            assert not fresh.any()
        elif new_rows == "random":
            assert 0.01 < float(fresh.std()) < 0.03
        else:
            torch.testing.assert_close(fresh.double(), mean.expand(9, -1), rtol=0, atol=1e-3)
            assert bool(fresh.std(0).any()) == (new_rows == "mean_covariance")
    (decoder,) = build_stages(open_model(tmp_path / "larger"), ParallelContext.single())
    assert decoder.config.vocab_size == 70


def test_transformers_opens_a_smaller_one_too_and_a_draw_is_the_same_again(folder, tmp_path):
    from transformers import AutoModelForCausalLM

    convert(folder, tmp_path / "smaller", vocabulary=VocabularyResize(50))
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "smaller").get_input_embeddings().weight.shape[0] == 50
    for name in ("one", "two"):
        convert(folder, tmp_path / name, vocabulary=VocabularyResize(64, "random"))
    one, two = tensors(tmp_path / "one"), tensors(tmp_path / "two")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_an_unknown_initialisation_is_named(folder, tmp_path):
    with pytest.raises(UserError, match="new rows can be mean, zero, random, mean_covariance, not 'ones'"):
        convert(folder, tmp_path / "out", vocabulary=VocabularyResize(64, "ones"))
    assert not (tmp_path / "out").exists()
