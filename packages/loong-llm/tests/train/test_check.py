"""What is wrong with a run file is all said before anything is written."""

import json
from pathlib import Path

import pytest

from loong_core.config import load_run
from loong_core.device.protocol import Availability
from loong_core.errors import ConfigError
from loong_llm.check import check_run, checked
from loong_llm.cli.check import check as check_command
from loong_llm.data_preview import preview_data
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
    assert found.facts["model"] == "qwen3-0.6b with overrides, qwen3 family, 102,976 parameters"
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
        ("data=null", "data.train: is missing"),
        ("seed=4294967296", "seed: is 4294967296"),
        ("device=cdua", "no device is called 'cdua'"),
        ("kernels.atention=sdpa", "kernels: "),
        ("engine=deepspeed", "input should be 'megatron' or 'fsdp'"),
        ("data.train=[{path: a.txt, weight: 1.0}, b.txt]", "b.txt has no weight"),
    ],
)
def test_each_fault_is_told_with_its_numbers(check, override, words):
    assert words in said(check(override))


def test_context_degrees_that_the_heads_or_the_tokens_do_not_fill_are_faults(check):
    words = said(check("layout.context=8", "layout.ulysses=8", world_size=8))
    assert words == (
        "layout.ulysses: 8 does not divide the 4 attention heads of a tensor rank "
        "(set layout.ulysses=4: 4 ranks exchange heads, 2 form a ring)"
    )
    words = said(check("layout.context=4", "layout.ulysses=3", world_size=4))
    assert words.startswith("layout.ulysses: 3 does not divide layout.context=4 (nearest that does is 2")
    words = said(check("layout.context=32", "data.sequence_length=8", world_size=32))
    assert words.startswith("layout.context: is 32, more ranks than the 16 tokens of a microbatch that they share")


def test_layers_given_by_hand_that_are_not_the_model_s_are_a_fault(check):
    words = said(check("layout.pipeline=2", "layout.pipeline_layers=[1, 2]", world_size=2))
    assert words == "layout.pipeline_layers: [1, 2] adds up to 3, the model has 2 layers"


def test_an_engine_that_does_not_take_a_layout_says_so(check):
    words = said(check("engine=fsdp", "layout.tensor=2", world_size=2))
    assert words == "layout.tensor: is 2, and engine fsdp divides a model among data ranks only (use megatron)"


def test_a_look_at_the_data_tells_the_steps_of_epochs_and_what_is_held_out_and_trained_on(text, tmp_path):
    own = [f"data.train={text}", f"data.validation={text}", f"output={tmp_path / 'run'}"]
    config = load_run(TrainingConfig, TINY, [*own, "train.steps=null", "train.epochs=4"]).config
    seen = preview_data(config, 2)
    assert seen is not None
    assert seen.warnings == ["1 of 1 held-out document also in the training data, word for word"]
    assert seen.steps == 4 * (2000 // 128) // 8


def test_steps_that_epochs_come_to_have_room_for_the_schedule(text, tmp_path, capsys):
    own = [f"data.train={text}", "data.validation=[]", "train.validate_every=null", f"output={tmp_path / 'run'}"]
    epochs = ["train.steps=null", "train.epochs=1", "train.warmup_steps=3", "train.stop_at=9"]
    with pytest.raises(ConfigError) as refused:
        check_command(TINY, [*own, *epochs])
    said = str(refused.value)
    assert "train.warmup_steps: is 3, beyond the run's 1 steps" in said
    assert "train.stop_at: is 9, beyond the run's 1 steps" in said


def test_what_only_this_machine_lacks_stops_a_start_and_warns_a_check(check, text, tmp_path, monkeypatch):
    found = check("model.overrides.vocab_size=100000000000")
    assert found.faults == []
    (fault,) = found.here
    assert "has 6,400," in str(fault)
    assert "and this machine has" in str(fault)

    monkeypatch.setattr("loong_core.device.cuda.CudaDevice.availability", lambda self: Availability(False, "no driver"))
    own = [f"data.train={text}", "data.validation=[]", "train.validate_every=null", f"output={tmp_path / 'run'}"]
    loaded = load_run(TrainingConfig, TINY, [*own, "device=cuda"])
    assert check_run(loaded, 1).faults == []
    with pytest.raises(ConfigError, match=r"device: device 'cuda' .* is unavailable: no driver"):
        checked(loaded, 1)


def test_a_cache_that_cannot_be_written_is_a_fault(check, tmp_path):
    (tmp_path / "file").write_text("")
    assert f"data.cache: {tmp_path / 'file'} is a file" in said(check(f"data.cache={tmp_path / 'file' / 'cache'}"))


def test_a_missing_run_file_is_the_only_fault(tmp_path):
    with pytest.raises(ConfigError) as refused:
        load_run(TrainingConfig, tmp_path / "run.yaml", ["layout.tensor=3"])
    assert len(refused.value.faults) == 1


def test_validation_data_and_a_fraction_exclude_each_other(check, text):
    assert "keep one of the two" in said(check(f"data.validation={text}", "data.validation_fraction=0.1"))


def test_an_output_of_another_run_is_refused_with_key_old_and_new(check, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text(json.dumps({"train": {"steps": 30, "lr": 0.1}}))
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1}\n')
    words = said(check())
    assert "train.lr: the run in" in words
    assert "has 0.1, this configuration 0.005" in words
