"""The example of fine-tuning given as a command on another small model, and what transformers computes from folders."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from toy_models import reference, save

EXAMPLES = Path(__file__).parents[3] / "examples" / "llm"


def base_model(hf: dict, folder: Path) -> Path:
    """A small model with the built-in tokenizer, as another program would leave it."""
    from loong_llm.tokenizer import load_tokenizer

    save(reference(hf), folder)
    load_tokenizer("bytes").save_pretrained(folder)
    return folder


def fine_tune(base, output, *overrides, nproc=1):
    """`loong-llm train examples/llm/tiny_sft.yaml` for five steps on another model; its status and what it said."""
    conversations = EXAMPLES / "tiny_conversations.jsonl"
    arguments = [
        "train",
        str(EXAMPLES / "tiny_sft.yaml"),
        f"output={output}",
        f"model={base}",
        f"data.train={conversations}",
        f"data.validation={EXAMPLES / 'tiny_conversations_held_out.jsonl'}",
        "train.epochs=null",
        "train.steps=5",
        "train.validate_every=null",
        *overrides,
        "--nproc",
        str(nproc),
    ]
    return subprocess.run(
        [sys.executable, "-m", "loong_llm.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "LOONG_DEVICE": "cpu"},
    )


def model_of(folder):
    """Transformers' model of a folder, in float32."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def logits(model):
    """Of one fixed sequence."""
    with torch.no_grad():
        return model(torch.arange(40)[None]).logits[0]
