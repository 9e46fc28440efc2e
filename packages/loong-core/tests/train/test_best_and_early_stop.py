"""The step with the lowest held-out loss is kept and left at the end, and a run ends when that loss falls no longer."""

import pytest
from toy_run import run_toy

from loong_core.checkpoint.resume_folder import published
from loong_core.config import RunConfig, RunFolder, load_run
from loong_core.config.checks import run_faults
from loong_core.train.metrics import read_rows

# The weight falls from 3 towards 0, so a held-out number between them makes the loss fall and then rise.
HELD_OUT = {"validate": True, "held_out": (1.6,)}
EVERY = ("train.validate_every=1", "train.schedule=constant")


def losses(output):
    return [row["val_loss"] for row in read_rows(RunFolder(output).metrics)]


def kept(output):
    return [int(path.name.removeprefix("step-")) for path in published(RunFolder(output).checkpoints)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run left alone: its held-out losses, and which step's is the lowest."""
    output = tmp_path_factory.mktemp("whole")
    run_toy(output, *EVERY, **HELD_OUT)
    found = losses(output)
    best = 1 + found.index(min(found))
    assert 1 < best < 6
    return found, best


def test_the_best_checkpoint_outlives_newer_ones_and_its_weights_are_what_is_left(tmp_path, whole):
    found, best = whole
    keep = ("checkpoint.best=true", "checkpoint.keep=1", "checkpoint.every=1")
    progress, weight = run_toy(tmp_path, *EVERY, *keep, **HELD_OUT)
    assert kept(tmp_path) == [best, 8]
    assert (progress.best_step, progress.best_val_loss) == (best, min(found))
    assert (weight - 1.6) ** 2 + 1 == pytest.approx(min(found))
    lowest = [row["val_lowest"] for row in read_rows(RunFolder(tmp_path).metrics)]
    assert lowest == [step <= best for step in range(1, 9)]
    again, same_weight = run_toy(tmp_path, *EVERY, *keep, **HELD_OUT)
    assert (again.step, same_weight) == (8, weight)


def test_without_best_the_last_steps_weights_are_left(tmp_path, whole):
    _, weight = run_toy(tmp_path, *EVERY, **HELD_OUT)
    assert (weight - 1.6) ** 2 + 1 == pytest.approx(whole[0][-1])


def test_a_run_ends_early_after_so_many_validations_without_a_lower_loss_and_stays_ended(tmp_path, whole):
    found, best = whole
    early = ("train.early_stop.patience=2", *EVERY)
    progress, _ = run_toy(tmp_path, *early, **HELD_OUT)
    assert (progress.step, progress.stopped_early, progress.finished(8)) == (best + 2, True, True)
    assert losses(tmp_path) == found[: best + 2]
    said = f"stopped early after step {best + 2} of 8: 2 validations without a held-out loss below the {min(found):.4f}"
    assert said in (tmp_path / "logs" / "rank-0.log").read_text()
    again, _ = run_toy(tmp_path, *early, **HELD_OUT)
    assert (again.step, kept(tmp_path)) == (best + 2, [best + 2])
    on, _ = run_toy(tmp_path, *EVERY, **HELD_OUT)
    assert (on.step, losses(tmp_path)) == (8, found)


def test_patience_and_best_are_counted_on_by_a_resumed_run(tmp_path, whole):
    found, best = whole
    settings = ("train.early_stop.patience=3", "checkpoint.best=true", *EVERY)
    run_toy(tmp_path, *settings, f"train.stop_at={best + 1}", **HELD_OUT)
    progress, weight = run_toy(tmp_path, *settings, **HELD_OUT)
    assert (progress.step, progress.best_step, progress.stale) == (best + 3, best, 3)
    assert (weight - 1.6) ** 2 + 1 == pytest.approx(min(found))


def test_a_fall_of_less_than_min_delta_is_none(tmp_path, whole):
    progress, _ = run_toy(tmp_path, *EVERY, "train.early_stop={patience: 1, min_delta: 9.0}", **HELD_OUT)
    assert (progress.step, progress.best_step) == (2, 1)


def test_whoever_looks_between_steps_is_called_before_the_first_and_after_each(tmp_path):
    seen = []
    run_toy(tmp_path, "train.stop_at=2", between=seen.append)
    run_toy(tmp_path, "train.stop_at=4", between=seen.append)
    assert seen == [0, 1, 2, 3, 4]


def test_early_stop_and_best_without_validations_between_are_faults():
    asked = ["output=x", "train.steps=8", "train.early_stop.patience=2", "checkpoint.best=true"]
    loaded = load_run(RunConfig, None, asked)
    found = {fault.where for fault in run_faults(loaded.config, loaded.given)}
    assert found == {"train.early_stop", "checkpoint.best"}
