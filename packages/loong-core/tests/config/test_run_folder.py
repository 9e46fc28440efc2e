"""A run folder belongs to one configuration."""

import pathlib

import pytest

from loong_core.config import RunConfig, RunFolder, load_run
from loong_core.errors import ConfigError, UserError


def config(*overrides):
    return load_run(RunConfig, None, ["output=x", "train.steps=5", *overrides]).config


def test_the_resolved_file_is_a_run_file_that_means_the_same(tmp_path):
    original = config("train.lr=1e-3", "train.profile.steps=[1, 2]", "logging.wandb.project=p")
    RunFolder(tmp_path / "run").claim(original).close()
    again = load_run(RunConfig, tmp_path / "run" / "run.yaml")
    assert again.faults == []
    assert again.config == original


def test_another_layout_logging_or_stopping_step_may_continue_the_run(tmp_path):
    folder = RunFolder(tmp_path)
    folder.claim(config()).close()
    folder.claim(config("layout.tensor=2", "logging.every=7", "train.stop_at=3", "checkpoint.every=2")).close()
    assert load_run(RunConfig, folder.run_yaml).config.train.stop_at == 3


def test_another_optimizer_may_not_and_every_difference_is_listed(tmp_path):
    folder = RunFolder(tmp_path)
    folder.claim(config()).close()
    folder.metrics.write_text('{"step": 1}\n')
    with pytest.raises(ConfigError) as refused:
        folder.claim(config("train.lr=1e-3", "seed=4", "layout.tensor=2"))
    said = str(refused.value)
    assert refused.value.exit_status == 2
    assert f"train.lr: the run in {tmp_path} has 0.0003, this configuration 0.001" in said
    assert "seed: " in said
    assert "layout" not in said
    assert load_run(RunConfig, folder.run_yaml).config.seed == 0


def test_a_folder_with_results_but_no_run_file_is_not_taken_over(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match=r"has metrics\.jsonl but no run\.yaml"):
        RunFolder(tmp_path).claim(config())


def test_a_folder_that_cannot_be_made_is_the_users_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError):
        RunFolder(tmp_path / "file" / "run").claim(config())


def test_two_processes_never_train_in_one_folder(tmp_path, capsys):
    with RunFolder(tmp_path).claim(config()), pytest.raises(UserError, match="another process is training in"):
        RunFolder(tmp_path).claim(config(), patience=0.01)
    assert f"another process is training in {tmp_path}; waiting 0.01 s for its end" in capsys.readouterr().err
    RunFolder(tmp_path).claim(config(), patience=0).close()


def test_what_a_refused_start_leaves_does_not_bind_the_corrected_command(tmp_path):
    folder = RunFolder(tmp_path)
    folder.claim(config("seed=1")).close()
    folder.metrics.write_text("")
    folder.checkpoints.mkdir()
    folder.claim(config("seed=2")).close()
    assert load_run(RunConfig, folder.run_yaml).config.seed == 2
    (folder.checkpoints / "step-00000005").mkdir()
    with pytest.raises(ConfigError, match="seed"):
        folder.claim(config("seed=3"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "is damaged: is not a text file in UTF-8"),
        (b"", "is damaged: is empty"),
        (b"train: [1]\n", r"is damaged: train is \[1\]; a mapping is wanted"),
        (b"train: {spike: 3}\n", "is damaged: train.spike is 3; a mapping is wanted"),
        (b"a: [\n", "is damaged: .*is not YAML"),
    ],
)
def test_a_damaged_run_file_of_a_folder_is_named_and_nothing_is_taken_over(tmp_path, content, words):
    folder = RunFolder(tmp_path)
    folder.run_yaml.write_bytes(content)
    folder.metrics.write_text('{"step": 1}\n')
    with pytest.raises(ConfigError, match=words) as refused:
        folder.claim(config())
    assert "restore that file, or name another folder" in str(refused.value)
    assert folder.run_yaml.read_bytes() == content


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("a" * 300, "is a name of 300 bytes"),
        ("a/" * 3000, "is a path of"),
        ("a\0b", "zero byte"),
        ("file/run", "is a file"),
        ("/proc/run", "cannot write in /proc"),
    ],
)
def test_an_output_that_cannot_be_written_is_a_fault_before_anything_is(tmp_path, monkeypatch, output, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (fault,) = RunFolder(pathlib.Path(output)).faults(config())
    assert words in str(fault)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
