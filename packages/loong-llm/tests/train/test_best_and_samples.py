"""A run leaves the model of its lowest held-out loss where that is asked for, and writes samples while it trains."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from text_toys import byte_model

from loong_core.config import load_run
from loong_core.train.metrics import read_rows
from loong_llm.check import check_run
from loong_llm.convert import convert
from loong_llm.generate import generate
from loong_llm.inference import open_for_inference
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.tokenizer import load_tokenizer

EXAMPLES = Path(__file__).parents[4] / "examples" / "llm"
OWN = [
    f"data.train={EXAMPLES / 'tiny_conversations.jsonl'}",
    f"data.validation={EXAMPLES / 'tiny_conversations_held_out.jsonl'}",
    "data.sequence_length=128",
    "train.epochs=null",
    "train.steps=6",
    "train.validate_every=1",
    "train.schedule=constant",
    'samples.prompts=["What is a byte?", "Who are you?"]',
    "samples.every=4",
    "samples.max_new_tokens=12",
    "checkpoint.best=true",
    "checkpoint.keep=1",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return byte_model(tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize(("engine", "nproc"), [("megatron", 1), ("fsdp", 2)])
def test_the_best_steps_model_is_left_and_samples_are_written_on_the_way(base, tmp_path, engine, nproc):
    given = [*OWN, f"model={base}", f"output={tmp_path / 'run'}", f"engine={engine}", "train.lr=1.0"]
    given += ["--nproc", str(nproc)]
    done = subprocess.run(
        [sys.executable, "-m", "loong_llm.cli.main", "train", str(EXAMPLES / "tiny_sft.yaml"), *given],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "LOONG_DEVICE": "cpu"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [row["val_loss"] for row in read_rows(tmp_path / "run" / "metrics.jsonl")]
    best = 1 + losses.index(min(losses))
    assert best < 6, "the rate is meant to be too high for the last step to be the best"
    assert f"the model is that of step {best}, whose held-out loss was lowest" in done.stdout

    convert(tmp_path / "run", tmp_path / "converted", step=best)
    left, of_best = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "run/hf", tmp_path / "converted")
    )
    assert all(torch.equal(left[name], of_best[name]) for name in of_best)

    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert [(row["step"], row["prompt"]) for row in rows] == [
        (step, prompt) for step in (0, 4, 6) for prompt in ("What is a byte?", "Who are you?")
    ]
    chat = load_tokenizer(str(tmp_path / "run/hf"))
    prompts = [
        chat.apply_chat_template(
            [{"role": "user", "content": row["prompt"]}], tokenize=False, add_generation_prompt=True
        )
        for row in rows[:2]
    ]
    model = open_for_inference(base, torch.device("cpu"))
    before = generate(model, prompts, max_new_tokens=12, rendered=True)
    assert [each.text for each in before] == [row["text"] for row in rows[:2]]
    assert [row["text"] for row in rows[4:]] != [row["text"] for row in rows[:2]]


def test_samples_need_prompts_and_whole_models_and_best_needs_validation(base, tmp_path):
    given = [*OWN, f"model={base}", f"output={tmp_path / 'run'}"]
    given += ["samples.prompts=[]", "layout.tensor=2", "data.validation=[]"]
    faults = "\n".join(map(str, check_run(load_run(TrainingConfig, EXAMPLES / "tiny_sft.yaml", given), 2).faults))
    assert "samples: needs the whole model on each rank, and layout.tensor is 2" in faults
    assert "samples.prompts: is missing" in faults
    assert "checkpoint.best: would be ignored: there is no validation data" in faults
