"""What is wrong with a run file is all said before anything is written."""

import json
from pathlib import Path

import pytest

from loong_core.config import load_run
from loong_core.errors import ConfigError
from loong_llm.check import check_run, checked
from loong_llm.recipes.training_config import TrainingConfig

TINY = Path(__file__).parents[4] / "examples" / "llm" / "tiny.yaml"


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("some text\n" * 200)
    return path


@pytest.fixture
def check(text, tmp_path):
    def run(*overrides, world_size=1):
        own = [f"data.train={text}", "data.validation=[]", "train.validate_every=null", f"output={tmp_path / 'run'}"]
        return check_run(load_run(TrainingConfig, TINY, [*own, *overrides]), world_size)

    return run


def said(found):
    return "\n".join(map(str, found.faults))


def test_the_example_has_no_faults_and_its_facts_are_told(check):
    found = check(world_size=2)
    assert said(found) == ""
    assert found.facts["model"] == "qwen3-0.6b, qwen3 family, 102,976 parameters"
    assert found.facts["a step"] == "8 sequences x 128 = 1,024 tokens, in 2 microbatches a rank"


def test_faults_of_schema_files_and_layout_are_told_together_and_nothing_is_written(check, tmp_path):
    found = check("train.lrr=1e-3", f"data.train={tmp_path}/tekst.txt", "layout.tensor=3")
    words = said(found)
    assert "train.lrr: is not a key of a run file (did you mean train.lr?)" in words
    assert "tekst.txt does not exist; the nearest name there is" in words
    assert "layout.tensor: 3 does not divide the model's 4 attention heads" in words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt"]
    with pytest.raises(ConfigError) as refused:
        checked(load_run(TrainingConfig, TINY, ["train.lrr=1e-3"]), 1)
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.global_batch_size=9", "is 9, which micro_batch_size 2 x 1 data ranks = 2 does not divide"),
        ("model.source=qwen3-0.7b", "no model is named 'qwen3-0.7b'; near it: qwen3-1.7b, qwen3-0.6b"),
        ("model.overrides.vocab_size=200", "has ids up to 258 ('<|pad|>'), the model's embedding has 200 rows"),
        ("model.overrides.hiden_size=64", "model.overrides.hiden_size: is not a key"),
        ("model.initialise=weights", "has a config and no weights"),
        ("model.overrides.max_position_embeddings=64", "is 128, beyond the model's max_position_embeddings 64"),
        ("tokenizer=null", "no tokenizer"),
        ("train.validate_every=5", "train.validate_every: would be ignored: there is no validation data"),
        ("device=cdua", "no device is called 'cdua'"),
        ("kernels.atention=sdpa", "kernels: "),
        ("engine=deepspeed", "input should be 'megatron' or 'fsdp'"),
        ("data.train=[{path: a.txt, weight: 1.0}, b.txt]", "b.txt has no weight"),
    ],
)
def test_each_fault_is_told_with_its_numbers(check, override, words):
    assert words in said(check(override))


def test_an_engine_that_does_not_take_a_layout_says_so(check):
    words = said(check("engine=fsdp", "layout.tensor=2", world_size=2))
    assert words == "layout.tensor: is 2, and engine fsdp divides a model among data ranks only (use megatron)"


def test_validation_data_and_a_fraction_exclude_each_other(check, text):
    assert "keep one of the two" in said(check(f"data.validation={text}", "data.validation_fraction=0.1"))


def test_an_output_of_another_run_is_refused_with_key_old_and_new(check, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text(json.dumps({"train": {"steps": 30, "lr": 0.1}}))
    words = said(check())
    assert "train.lr: the run in" in words
    assert "has 0.1, this configuration 0.005" in words
