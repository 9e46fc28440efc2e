"""Mid-training blends documents and conversations by weights that change with the steps, and resumes exactly."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from toy_models import CONFIGS, reference, save

from loong_core.config import load_run
from loong_core.data.batch import IGNORED_LABEL
from loong_core.train.metrics import read_rows
from loong_llm.check import check_run
from loong_llm.recipes.stage_data import open_stage_data
from loong_llm.recipes.training_config import SourceSection, TrainingConfig
from loong_llm.source_kinds import kind_of
from loong_llm.tokenizer import load_tokenizer

EXAMPLES = Path(__file__).parents[4] / "examples" / "llm"
TALK, TEXT = EXAMPLES / "tiny_conversations.jsonl", EXAMPLES / "tiny.txt"
DATA = [
    f"data.train=[{{path: {TEXT}, weight: 9}}, {{path: {TALK}, weight: 1}}]",
    f"data.validation=[{EXAMPLES / 'tiny_held_out.txt'}, {EXAMPLES / 'tiny_conversations_held_out.jsonl'}]",
]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = save(
        reference({**CONFIGS["qwen3, head_dim unlike hidden/heads"], "vocab_size": 259}),
        tmp_path_factory.mktemp("base"),
    )
    load_tokenizer("bytes").save_pretrained(folder)
    return folder


def loaded(base, output, *overrides):
    own = [f"model.source={base}", f"output={output}", *DATA, *overrides]
    return load_run(TrainingConfig, EXAMPLES / "tiny_midtrain.yaml", own)


@pytest.fixture(scope="module")
def corpus(base, tmp_path_factory):
    config = loaded(base, "nowhere").config
    return open_stage_data(config, load_tokenizer("bytes"), tmp_path_factory.mktemp("cache"))


def is_conversation(batch):
    """Whether prompts are left out of a microbatch of one sample: a document's tokens are all but one trained on."""
    return int((batch.labels == IGNORED_LABEL).sum()) > 8


def turns(stream, steps):
    return [[is_conversation(batch) for batch in stream.next_step()] for _ in range(steps)]


def test_conversations_come_as_often_as_the_schedule_says(corpus):
    seen = turns(corpus.stream(global_batch_size=4, micro_batch_size=1), 60)
    share = [sum(map(sum, seen[first : first + 10])) / 40 for first in range(0, 60, 10)]
    assert share[0] == pytest.approx(0.1, abs=0.03)
    assert share[0] < share[1] < share[2] < share[3] == share[5] == pytest.approx(0.75, abs=0.03)


def test_a_position_is_the_same_for_every_number_of_ranks(corpus):
    whole = corpus.stream(global_batch_size=4, micro_batch_size=1)
    line = [[batch.tokens.tolist() for batch in whole.next_step()] for _ in range(25)]
    before = corpus.stream(global_batch_size=4, micro_batch_size=1)
    turns(before, 20)
    for rank in range(2):
        after = corpus.stream(global_batch_size=4, micro_batch_size=1, data_rank=rank, data_size=2)
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
        step = [batch.tokens.tolist() for batch in after.next_step()]
        assert step == line[20][rank::2]


def test_both_kinds_are_held_out(corpus):
    rows = corpus.held_out()
    parts = [corpus.documents.held_out(), corpus.conversations.held_out()]
    assert len(rows) == sum(map(len, parts))
    batches = rows.microbatches(micro_batch_size=1)
    assert sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in batches) == sum(
        part.predicted_tokens for part in parts
    )


def test_what_a_source_holds_is_told_by_its_records_or_by_its_format(tmp_path):
    both = tmp_path / "alpaca.jsonl"
    both.write_text(json.dumps({"instruction": "a", "output": "b", "text": "a b"}) + "\n")
    documents = tmp_path / "documents.jsonl"
    documents.write_text(json.dumps({"text": "a"}) + "\n")
    assert kind_of(SourceSection(path=str(TEXT))) == "documents"
    assert kind_of(SourceSection(path=str(documents))) == "documents"
    assert kind_of(SourceSection(path=str(TALK))) == "conversations"
    assert kind_of(SourceSection(path=str(both))) == "conversations"
    assert kind_of(SourceSection(path=str(both), format="documents")) == "documents"
    assert kind_of(SourceSection(path=str(documents), fields={"instruction": "text"})) == "conversations"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("data.blend_schedule=[{step: 5, weights: [1]}]", "[0].weights: has 1 weight, data.train has 2 sources"),
        ("data.blend_schedule=[{step: 5, weights: [0, 0]}]", "[0].weights: are all 0"),
        (
            "data.blend_schedule=[{step: 5, weights: [1, 1]}, {step: 5, weights: [1, 2]}]",
            "[1].step: is 5, after a point at step 5",
        ),
        ("data.blend_schedule=[{step: 99, weights: [1, 1]}]", "[0].step: is 99, beyond the run's 30 steps"),
        (f"data.train=[{TEXT}, {TALK}]", "data.blend_schedule: begins at step 10, and not every source has a weight"),
        (f"data.train={TALK}", "data.blend_schedule: would be ignored: a blend of one source"),
        (
            f"data.train=[{{path: {TEXT}, weight: 1}}, {{path: {TEXT}.gone, weight: 1}}]",
            "data.train[1]: ",
        ),
        ("data.chat_template=null", "data.chat_template: the tokenizer"),
    ],
)
def test_each_fault_of_the_blend_is_told_with_its_key(base, tmp_path, override, words):
    assert words in "\n".join(map(str, check_run(loaded(base, tmp_path / "run", override), 1).faults))


def test_keys_of_conversations_are_faults_where_there_are_none(base, tmp_path):
    only = (f"data.train={TEXT}", f"data.validation={TEXT}", "data.blend_schedule=[]")
    faults = "\n".join(map(str, check_run(loaded(base, tmp_path / "run", *only), 1).faults))
    assert "data.chat_template: would be ignored: it is for conversations, of which there is no source" in faults
    assert check_run(loaded(base, tmp_path / "run"), 1).faults == []


def midtrain(base, output, *overrides):
    """`loong-llm train examples/llm/tiny_midtrain.yaml` for eight steps on one rank."""
    own = [f"model={base}", f"output={output}", *DATA, "train.steps=8", "train.decay_steps=4"]
    own += ["data.blend_schedule=[{step: 2, weights: [9, 1]}, {step: 8, weights: [1, 3]}]", *overrides]
    done = subprocess.run(
        [sys.executable, "-m", "loong_llm.cli.main", "train", str(EXAMPLES / "tiny_midtrain.yaml"), *own],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "LOONG_DEVICE": "cpu"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_adapters_are_mid_trained_and_a_stopped_run_goes_on_as_if_it_had_not(base, tmp_path):
    from safetensors.torch import load_file

    lora = ("lora.rank=4", "train.lr=1e-1")
    midtrain(base, tmp_path / "whole", *lora)
    midtrain(base, tmp_path / "stopped", *lora, "train.stop_at=5")
    assert "resuming after step 5" in midtrain(base, tmp_path / "stopped", *lora)
    figures = [
        [(row["loss"], row["grad_norm"], row.get("val_loss")) for row in read_rows(tmp_path / name / "metrics.jsonl")]
        for name in ("whole", "stopped")
    ]
    assert figures[0] == figures[1]
    whole, stopped = (
        load_file(tmp_path / name / "adapter" / "adapter_model.safetensors") for name in ("whole", "stopped")
    )
    assert whole.keys() == stopped.keys()
    assert all(torch.equal(whole[name], stopped[name]) for name in whole)
    assert "Assistant:" in (tmp_path / "whole" / "adapter" / "chat_template.jinja").read_text()
