"""The loop's promises, on a run of one weight: what is written, what is not applied, what is resumed."""

import json
import math

import pytest
from toy_run import run_toy, terminate

from loong_core.config import RunFolder
from loong_core.errors import Interrupted, NumericalError
from loong_core.train.metrics import read_rows


def rows(output):
    return read_rows(RunFolder(output).metrics)


def figures(output):
    return [(row["step"], row["loss"], row["grad_norm"], row["lr"]) for row in rows(output)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that was left alone."""
    output = tmp_path_factory.mktemp("whole")
    _, weight = run_toy(output)
    return figures(output), weight


def test_each_step_has_a_row_with_the_figures_that_tools_rely_on(tmp_path):
    run_toy(tmp_path)
    found = rows(tmp_path)
    assert [row["step"] for row in found] == list(range(1, 9))
    keys = {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_second", "mfu", "memory_bytes"}
    assert all(keys <= row.keys() for row in found)
    assert [row["tokens"] for row in found] == [100 * step for step in range(1, 9)]
    assert found[0]["doubled"] == 2 * found[0]["loss"]
    assert found[0]["memory_bytes"] > 2**20
    assert (tmp_path / "logs" / "rank-0.log").read_text().count("step ") == 8


def test_validation_comes_before_the_first_step_at_its_interval_and_at_the_end(tmp_path):
    progress, weight = run_toy(tmp_path, "train.validate_every=3", validate=True)
    found = {row["step"]: row["val_loss"] for row in rows(tmp_path) if "val_loss" in row}
    assert sorted(found) == [3, 6, 8]
    assert rows(tmp_path)[0]["val_loss_before"] == progress.first_val_loss == (3.0**2 + 2.0**2) / 2 + 1
    assert progress.last_val_loss == found[8] == pytest.approx((weight**2 + (weight - 1) ** 2) / 2 + 1)


def test_a_run_stopped_at_a_step_and_given_again_is_the_run_left_alone(tmp_path, whole):
    run_toy(tmp_path, "train.stop_at=3")
    assert "stopped after step 3 of 8 as train.stop_at says" in (tmp_path / "logs" / "rank-0.log").read_text()
    assert [row[0] for row in figures(tmp_path)] == [1, 2, 3]
    _, weight = run_toy(tmp_path)
    assert (figures(tmp_path), weight) == whole


def test_a_signal_ends_the_run_at_the_step_boundary_with_its_state_saved(tmp_path, whole):
    with pytest.raises(Interrupted) as stopped:
        run_toy(tmp_path, events={4: terminate})
    assert stopped.value.exit_status == 128 + 15
    assert len(rows(tmp_path)) == 4
    _, weight = run_toy(tmp_path)
    assert (figures(tmp_path), weight) == whole


def test_a_run_that_died_between_checkpoints_goes_on_from_the_last_one(tmp_path, whole):
    def die():
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        run_toy(tmp_path, "checkpoint.every=2", "checkpoint.asynchronous=false", events={6: die})
    assert [row[0] for row in figures(tmp_path)] == [1, 2, 3, 4, 5]
    _, weight = run_toy(tmp_path)
    assert (figures(tmp_path), weight) == whole


def test_a_loss_that_is_no_number_is_not_applied_and_leaves_the_last_checkpoint_usable(tmp_path, whole):
    with pytest.raises(NumericalError, match="step 6: loss is nan") as stopped:
        run_toy(tmp_path, "checkpoint.every=5", events={6: lambda: math.nan})
    assert stopped.value.__notes__ == [f"The last checkpoint is {tmp_path / 'checkpoints' / 'step-00000005'}."]
    assert [row[0] for row in figures(tmp_path)] == [1, 2, 3, 4, 5]
    _, weight = run_toy(tmp_path)
    assert (figures(tmp_path), weight) == whole


SPIKE = {7: lambda: 30.0}
STEADY = "train.schedule=constant"


def test_a_spike_is_reported_and_applied_by_default(tmp_path):
    run_toy(tmp_path, STEADY, events=SPIKE)
    assert [row.get("skipped") for row in rows(tmp_path)[:7]] == [None] * 6 + [False]
    assert rows(tmp_path)[7]["loss"] > 20
    assert "times the median" in (tmp_path / "logs" / "rank-0.log").read_text()


def test_a_spike_that_is_skipped_leaves_the_weights_as_they_were(tmp_path):
    run_toy(tmp_path, STEADY, "train.spike.policy=skip", events=SPIKE)
    assert rows(tmp_path)[6]["skipped"] is True
    assert rows(tmp_path)[7]["loss"] < 3


def test_a_spike_ends_the_run_by_choice(tmp_path):
    with pytest.raises(NumericalError, match=r"step 7: loss .* \(train\.spike\.policy stop\)"):
        run_toy(tmp_path, STEADY, "train.spike.policy=stop", events=SPIKE)
    assert len(rows(tmp_path)) == 6


def test_a_finished_run_given_again_trains_nothing(tmp_path, whole):
    run_toy(tmp_path)
    _, weight = run_toy(tmp_path)
    assert (figures(tmp_path), weight) == whole
    assert "nothing to train: the run is at step 8 of 8" in (tmp_path / "logs" / "rank-0.log").read_text()


def test_only_so_many_checkpoints_are_kept_and_the_profile_is_written(tmp_path):
    run_toy(tmp_path, "checkpoint.every=2", "checkpoint.keep=2", "train.profile.steps=[2, 3]")
    folder = RunFolder(tmp_path)
    assert len([path for path in folder.checkpoints.iterdir() if not path.name.startswith(".")]) == 2
    assert (folder.profile / "trace-rank-0.json.gz").exists()
    assert json.loads(folder.metrics.read_text().splitlines()[-1])["step"] == 8
