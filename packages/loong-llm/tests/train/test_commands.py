"""The command line: one message and the right status, and help that does not wait for torch."""

import fcntl
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file
from train_command import EXAMPLES, FILES, figures

from loong_core.cli.entry import run_app
from loong_core.config import RunFolder
from loong_llm.cli.main import app


@pytest.fixture
def command(capsys):
    """Run the command in this process; its status, output and errors."""

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            run_app(app, [str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return ended.value.code or 0, printed.out, printed.err

    return run


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    """A short run by one rank, with everything that a run can write."""
    output = tmp_path_factory.mktemp("short") / "run"
    settings = [*FILES, f"output={output}", "train.steps=6", "train.validate_every=3", "train.profile.steps=[2, 3]"]
    settings.append("checkpoint.export_every=4")
    with pytest.raises(SystemExit) as ended:
        run_app(app, ["train", str(EXAMPLES / "tiny.yaml"), *settings])
    assert not ended.value.code
    return output


def test_help_of_every_command_needs_neither_torch_nor_transformers():
    program = """
import sys
from typer.testing import CliRunner
from loong_llm.cli.main import app
for command in ["quickstart", "train", "check", "preprocess", "convert", "export", "generate", "eval"]:
    assert CliRunner().invoke(app, [command, "--help"]).exit_code == 0, command
print(sorted({"torch", "transformers", "megatron", "numpy"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_all_faults_come_in_one_message_with_status_2_and_nothing_is_written(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, said, error = command(
        "train", EXAMPLES / "tiny.yaml", "train.lrr=1e-3", "data.train=missing.jsonl", "layout.tensor=3"
    )
    assert (status, said) == (2, "")
    assert error.startswith("error: ")
    assert "train.lrr: is not a key of a run file (did you mean train.lr?)" in error
    assert "missing.jsonl does not exist" in error
    assert "layout.tensor: 3 does not divide the model's 4 attention heads" in error
    assert list(tmp_path.iterdir()) == []


def test_check_tells_what_a_run_would_be_without_writing(command, monkeypatch, tmp_path):
    monkeypatch.chdir(EXAMPLES.parents[1])
    status, said, _ = command("check", EXAMPLES / "tiny.yaml", f"output={tmp_path / 'run'}")
    assert status == 0
    assert "102,976 parameters" in said
    assert "no faults" in said
    assert not (tmp_path / "run").exists()


def test_a_run_leaves_the_folder_that_tools_rely_on(run_folder):
    there = {path.relative_to(run_folder).as_posix() for path in run_folder.rglob("*") if path.is_file()}
    assert {
        "run.yaml",
        "metrics.jsonl",
        "checkpoints/step-00000006/manifest.json",
        "hf/model.safetensors",
        "hf/config.json",
        "hf/tokenizer.json",
        "hf/generation_config.json",
        "logs/rank-0.log",
        "profile/trace-rank-0.json.gz",
    } <= there
    assert [row[0] for row in figures(run_folder)] == [1, 2, 3, 4, 5, 6]


def test_a_trained_folder_is_evaluated_alike_by_us_and_by_transformers(command, run_folder):
    arguments = ["eval", run_folder / "hf", "--data", EXAMPLES / "tiny_held_out.txt", "--sequence-length", 128]
    status, ours, _ = command(*arguments)
    assert status == 0
    assert command(*arguments, "--with-transformers")[1] == ours
    assert f"loss {figures(run_folder)[-1][3]:.6f} nats" in ours


def test_a_trained_folder_writes_on_and_is_converted(command, run_folder, tmp_path):
    status, said, _ = command("generate", run_folder / "hf", "--prompt", "A token", "--max-new-tokens", 5)
    assert (status, said.startswith("A token")) == (0, True)
    status, said, _ = command("convert", run_folder, tmp_path / "bf16", "--dtype", "bf16")
    assert (status, "24 tensors" in said) == (0, True)
    assert (tmp_path / "bf16" / "model.safetensors").exists()


def test_a_run_folder_named_as_a_model_is_answered_with_the_folder_that_is_meant(command, run_folder):
    status, _, error = command("generate", run_folder, "--prompt", "A")
    assert (status, f"did you mean {run_folder / 'hf'}?" in error) == (2, True)


def test_a_taken_place_is_refused_before_the_source_is_read(command, run_folder):
    status, _, error = command("convert", run_folder / "nothing", run_folder)
    assert (status, "--overwrite" in error) == (2, True)


def test_eval_names_its_option_for_the_key_of_the_text(command, run_folder, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body": "some text"}\n')
    status, _, error = command("eval", run_folder / "hf", "--data", tmp_path / "a.jsonl")
    assert (status, "set --text-key to" in error, "data.text_key" in error) == (2, True, False)


def test_another_optimizer_for_the_same_folder_is_refused_with_both_values(command, run_folder):
    status, _, error = command(
        "train", EXAMPLES / "tiny.yaml", *FILES, f"output={run_folder}", "train.steps=6", "train.lr=1e-3"
    )
    assert status == 2
    assert "train.lr: the run in" in error
    assert "has 0.005, this configuration 0.001" in error


def test_text_is_prepared_ahead_and_trained_on_by_its_prefix(command, tmp_path):
    status, said, _ = command(
        "preprocess", EXAMPLES / "tiny.txt", "--output", tmp_path / "tiny", "--tokenizer", "bytes"
    )
    assert status == 0
    assert "1 document, 7,037 tokens" in said
    prepared = [f"data.train={tmp_path / 'tiny'}", "train.steps=6"]
    status, said, error = command("check", EXAMPLES / "tiny.yaml", *prepared, f"output={tmp_path / 'run'}")
    assert (status, error) == (0, ""), error


def test_a_model_written_while_training_is_that_of_a_run_stopped_then(run_folder, tmp_path, command):
    stopped = [*FILES, f"output={tmp_path / 'stopped'}", "train.steps=6", "train.validate_every=3", "train.stop_at=4"]
    assert command("train", EXAMPLES / "tiny.yaml", *stopped)[0] == 0
    assert command("convert", tmp_path / "stopped", tmp_path / "hf")[0] == 0
    (written,) = (run_folder / "exports").iterdir()
    assert written.name == "step-00000004"
    assert {file.name for file in written.iterdir()} == {file.name for file in (run_folder / "hf").iterdir()}
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (written, tmp_path / "hf"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_export_is_for_a_run_that_is_training(run_folder, command, tmp_path):
    status, _, error = command("export", run_folder)
    assert status == 2
    assert f"nothing is training in {run_folder}; `loong-llm convert {run_folder} OUTPUT`" in error
    assert "has no run.yaml" in command("export", tmp_path)[2]
    RunFolder(run_folder).root.joinpath(".lock").touch()
    with (run_folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "asked for; the model appears in" in command("export", run_folder)[1]
    assert RunFolder(run_folder).export_request.exists()
    RunFolder(run_folder).export_request.unlink()
