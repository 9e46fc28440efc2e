"""The train command fine-tunes: whole models, chosen weights, and adapters that the peft library opens."""

import json

import pytest
import torch
from sft_command import base_model, fine_tune, logits, model_of
from toy_models import CONFIGS

from loong_core.train.metrics import read_rows

BASE = {**CONFIGS["qwen3, head_dim unlike hidden/heads"], "vocab_size": 259}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return base_model(BASE, tmp_path_factory.mktemp("base"))


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def test_sft_on_two_ranks_lowers_the_held_out_loss_and_exports_the_chat_template(base, tmp_path):
    from transformers import AutoTokenizer

    done = fine_tune(base, tmp_path, "train.lr=1e-2", nproc=2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "22 samples in 11 sequences" in done.stdout
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert rows[-1]["val_loss"] < rows[0]["val_loss_before"] - 0.1
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "hf")
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert asked.endswith("User: Hi\nAssistant:")
    generation = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    assert generation["eos_token_id"] == tokenizer.eos_token_id
    assert not torch.equal(logits(model_of(tmp_path / "hf")), logits(model_of(base)))


def test_lora_leaves_an_adapter_that_peft_opens_and_a_merged_model_with_the_same_logits(base, tmp_path):
    from peft import PeftModel

    lora = ("lora.rank=4", "lora.alpha=8", "lora.targets=[q_proj, v_proj, down_proj]", "train.lr=1e-1")
    done = fine_tune(base, tmp_path / "adapted", *lora)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "adapted" / "hf").exists()
    adapted = PeftModel.from_pretrained(model_of(base), tmp_path / "adapted" / "adapter").eval()
    done = fine_tune(base, tmp_path / "merged", *lora, "lora.merge=true")
    assert done.returncode == 0, done.stdout + done.stderr
    merged = logits(model_of(tmp_path / "merged" / "hf"))
    torch.testing.assert_close(logits(adapted), merged, rtol=1e-5, atol=1e-5)
    assert float((merged - logits(model_of(base))).abs().max()) > 0.1


def test_train_only_leaves_every_other_weight_as_it_was(base, tmp_path):
    done = fine_tune(base, tmp_path, "train.train_only=[layers.1.mlp]")
    assert done.returncode == 0, done.stdout + done.stderr
    before, after = weights(base), weights(tmp_path / "hf")
    changed = {name for name, values in before.items() if not torch.equal(values.float(), after[name])}
    assert changed == {f"model.layers.1.mlp.{name}_proj.weight" for name in ("gate", "up", "down")}
