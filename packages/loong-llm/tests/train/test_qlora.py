"""The train command with a base in 4 bits: what it says, resumes, and leaves for peft and transformers."""

import json
import shutil

import pytest
import torch
from sft_command import base_model, fine_tune, logits, model_of
from toy_models import CONFIGS

from loong_core.train.metrics import read_rows

QLORA = ("lora.base=nf4", "lora.rank=4", "lora.alpha=8", "train.lr=1e-1", "checkpoint.every=3")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    shape = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 32}
    return base_model(
        {**CONFIGS["qwen3, head_dim unlike hidden/heads"], **shape, "vocab_size": 259}, tmp_path_factory.mktemp("base")
    )


@pytest.fixture(scope="module")
def adapted(base, tmp_path_factory):
    """A run of five steps, and what it said."""
    output = tmp_path_factory.mktemp("adapted")
    done = fine_tune(base, output, *QLORA)
    assert done.returncode == 0, done.stdout + done.stderr
    return output, done.stdout


def test_the_run_tells_its_memory_and_learns(adapted):
    output, said = adapted

    assert "frozen base in 4 bits: 8 matrices take" in said
    rows = read_rows(output / "metrics.jsonl")
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_a_run_that_is_gone_on_with_is_the_run_that_was_left_alone(base, adapted, tmp_path):
    output, _ = adapted
    shutil.copytree(output, tmp_path / "again")
    last = max((tmp_path / "again" / "checkpoints").glob("step-*"))
    assert last.name == "step-00000005"
    shutil.rmtree(last)
    shutil.rmtree(tmp_path / "again" / "adapter")
    done = fine_tune(base, tmp_path / "again", *QLORA)
    assert "resuming after step 3" in done.stdout, done.stdout + done.stderr
    for run in (output, tmp_path / "again"):
        assert (run / "adapter" / "adapter_config.json").is_file()
    first, second = (
        (run / "adapter" / "adapter_model.safetensors").read_bytes() for run in (output, tmp_path / "again")
    )
    assert first == second


def test_peft_over_transformers_own_4_bit_model_computes_what_was_trained(base, adapted, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    output, _ = adapted
    named = json.loads((output / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert named == str(base)
    rounded = AutoModelForCausalLM.from_pretrained(
        base,
        dtype=torch.float32,
        quantization_config=BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32
        ),
    )
    # In training mode: in the other one bitsandbytes multiplies in bfloat16 on processors that have it.
    theirs = logits(PeftModel.from_pretrained(rounded, output / "adapter").train())
    done = fine_tune(base, tmp_path / "merged", *QLORA, "lora.merge=true")
    assert done.returncode == 0, done.stdout + done.stderr
    merged = logits(model_of(tmp_path / "merged" / "hf"))
    torch.testing.assert_close(theirs, merged, rtol=1e-4, atol=1e-4)
    assert float((merged - logits(model_of(base))).abs().max()) > 0.1
