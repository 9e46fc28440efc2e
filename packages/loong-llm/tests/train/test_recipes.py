"""Every recipe of examples/llm is a run without faults on a model of its family."""

import json
from pathlib import Path

import pytest
import torch
from text_toys import byte_model

from loong_core.checkpoint.hf_export import export_hf
from loong_core.checkpoint.pieces import StatePiece
from loong_core.config import load_run
from loong_core.parallel.context import ParallelContext
from loong_llm.check import check_run
from loong_llm.model import build_stages, open_model
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.tokenizer import load_tokenizer

EXAMPLES = Path(__file__).parents[4] / "examples" / "llm"
FAMILIES = ("internlm2", "llama", "qwen", "qwen2", "qwen3")
NOT_IN_TRANSFORMERS = ("internlm2", "qwen")
RECIPES = ("pretrain", "continue", "midtrain", "sft", "sft_lora")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A small model of each family with the built-in tokenizer."""
    made = {
        family: byte_model(tmp_path_factory.mktemp(family), family, max_position_embeddings=8192)
        for family in FAMILIES
        if family not in NOT_IN_TRANSFORMERS
    }
    small = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 64}
    first_qwen = open_model("qwen-7b", {**small, "vocab_size": 259, "kv_channels": 8, "seq_length": 8192})
    internlm2 = open_model("internlm2.5-7b", {**small, "vocab_size": 259, "num_key_value_heads": 2})
    for family, source in (("qwen", first_qwen), ("internlm2", internlm2)):
        made[family] = written(source, tmp_path_factory.mktemp(family) / "model")
    return made


def written(source, folder):
    """A small model of a family for which transformers has no class, written by us."""
    context = ParallelContext.single()
    stages = build_stages(source, context, initialise="random")
    pieces = [
        StatePiece("weight", piece, part)
        for parameter, placement in source.weight_map.placements(stages[0], context)
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
    ]
    export_hf(folder, source.hf_config, pieces, context, torch.float32)
    load_tokenizer("bytes").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The files that the recipes name, small."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("documents", "domain", "general"):
        (folder / name).mkdir()
        (folder / name / "a.jsonl").write_text(json.dumps({"text": "some text " * 40}) + "\n")
    (folder / "held_out.jsonl").write_text(json.dumps({"text": "other text " * 40}) + "\n")
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    for name in ("conversations", "held_out_conversations"):
        (folder / f"{name}.jsonl").write_text(2 * (json.dumps({"messages": talk}) + "\n"))
    return folder


def test_each_family_has_every_recipe():
    assert {path.parent.name for path in EXAMPLES.glob("*/*.yaml")} == set(FAMILIES)
    for family in FAMILIES:
        assert {path.stem for path in (EXAMPLES / family).glob("*.yaml")} == set(RECIPES)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_has_no_faults(models, data, tmp_path, family, recipe):
    text = (EXAMPLES / family / f"{recipe}.yaml").read_text().replace("/data/", f"{data}/")
    (tmp_path / "run.yaml").write_text(text)
    own = [f"output={tmp_path / 'run'}", "device=cpu", "precision=bf16"]
    if recipe == "pretrain":
        own.append("tokenizer=bytes")
    else:
        own.append(f"model={models[family]}")
    found = check_run(load_run(TrainingConfig, tmp_path / "run.yaml", own), 8)
    assert [str(fault) for fault in found.faults] == []
    assert found.facts["stage"] == {"continue": "pretrain", "sft_lora": "sft"}.get(recipe, recipe)
    assert ("adapters" in found.facts) == (recipe == "sft_lora")
