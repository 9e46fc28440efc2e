"""`loong-llm plan`: its table, its JSON, and what it says of what cannot be."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loong_core.errors import LoongError
from loong_llm.cli.main import app

EXAMPLE = str(Path(__file__).parents[4] / "examples" / "llm" / "qwen3_30b_a3b.yaml")


@pytest.fixture
def plan():
    def run(*arguments):
        done = CliRunner().invoke(app, ["plan", EXAMPLE, *arguments])
        if isinstance(done.exception, LoongError):
            return str(done.exception)
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_the_table_has_the_fastest_layouts_and_the_run_files_own(plan):
    said = plan("--gpus", "64", "--device", "h200", "--top", "5")
    assert "qwen3-30b-a3b, 30,532,122,624 parameters, on 64 h200 (8 machines of 8)" in said
    rows = [line for line in said.splitlines() if line.strip().startswith(tuple("12345"))]
    assert len([row for row in rows if row.split()[0].rstrip("*") in "12345"]) >= 5
    assert "* the layout of the run file" in said
    assert "to run the first: layout." in said


def test_what_to_write_undoes_degrees_of_the_file_that_are_back_at_their_default(plan):
    first = json.loads(plan("layout.expert=1", "layout.tensor=8", "--gpus", "64", "--json"))["layouts"][0]
    assert first["layout"]["expert"] == 1
    assert "layout.expert=1" in first["overrides"].split()


def test_json_has_bytes_and_seconds_of_each_layout(plan):
    said = json.loads(plan("--gpus", "64", "--json", "--top", "3"))
    assert len(said["layouts"]) == 3
    first = said["layouts"][0]
    assert first["memory"]["peak"] < first["memory"]["needed"] <= said["device_memory"]
    assert first["step_seconds"] == pytest.approx(sum(first["seconds"].values()))
    assert said["run_file"]["layout"]["pipeline"] == 4


def test_values_on_the_command_line_are_kept(plan):
    said = json.loads(plan("layout.tensor=2", "train.micro_batch_size=1", "--gpus", "16", "--json"))
    assert {each["layout"]["tensor"] for each in said["layouts"]} == {2}
    assert {each["micro_batch_size"] for each in said["layouts"]} == {1}


def test_a_run_that_does_not_fit_names_what_does(plan):
    said = plan("--gpus", "2")
    assert said.startswith("no layout of 2 h200 holds this run: the least that a device must have is")
    assert "  - 8 h200: layout." in said
    assert "recomputing each block in backward" in plan("--gpus", "4")


def test_recomputation_is_planned_on_request(plan):
    said = json.loads(plan("--gpus", "4", "--recompute", "--json"))
    assert {each["recompute"] for each in said["layouts"]} == {"full"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--device", "h2000"), "no accelerator is called 'h2000'; did you mean h200?"),
        (
            ("--gpus", "64", "--nodes", "7"),
            "do not divide evenly among --nodes 7; the nearest that do are 63",
        ),
        (("layout.tensr=2",), "layout.tensr: is not a key of a run file (did you mean layout.tensor?)"),
        (("layout.tensor=3", "--gpus", "12", "--nodes", "2"), "layout.tensor: 3 does not divide the model's 32"),
        (("train.global_batch_size=7", "train.micro_batch_size=2"), "the nearest that does is 8"),
    ],
)
def test_what_is_impossible_is_said(plan, arguments, words):
    assert words in plan(*arguments)


def test_only_what_is_trained_has_gradients_and_optimizer():
    """Adapters of rank 8 on queries of Qwen3-0.6B: 28 layers of 8 x (1024 + 2048) parameters."""
    file = str(Path(EXAMPLE).parent / "qwen3_0.6b_pretrain.yaml")
    runs = {
        "whole": (),
        "adapters": ("lora.rank=8", "lora.targets=q_proj"),
        "4 bits": ("lora.rank=8", "lora.targets=q_proj", "lora.base=nf4"),
        "queries": ("train.train_only=[q_proj]",),
    }
    found = {}
    for name, overrides in runs.items():
        done = CliRunner().invoke(app, ["plan", file, *overrides, "--gpus", "1", "--json"])
        assert done.exit_code == 0, done.output
        found[name] = json.loads(done.output)["layouts"][0]["memory"]
    adapters = 28 * 8 * (1024 + 2048)
    assert found["adapters"]["gradients"] == pytest.approx(4 * adapters)
    assert found["adapters"]["optimizer"] == pytest.approx(12 * adapters)
    assert found["adapters"]["weights"] == pytest.approx(found["whole"]["weights"] + 2 * adapters)
    assert found["4 bits"]["weights"] < 0.7 * found["adapters"]["weights"]
    assert found["queries"]["gradients"] == pytest.approx(4 * 28 * 1024 * 2048)
    assert found["queries"]["weights"] == found["whole"]["weights"]


def test_planning_needs_no_torch():
    code = (
        "import sys; from loong_llm.cli.main import app; from typer.testing import CliRunner; "
        f"done = CliRunner().invoke(app, ['plan', {EXAMPLE!r}, '--gpus', '64']); "
        "assert done.exit_code == 0, done.output; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
