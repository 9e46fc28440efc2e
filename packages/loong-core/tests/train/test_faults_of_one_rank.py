"""What befalls one rank in the middle of a run ends all of them, each with a status, and says whose fault it was."""

import os
import signal

import pytest
from forked_ranks import run_forked
from toy_run import run_toy

from loong_core.parallel.crew import Crew


def raise_an_error():
    raise ValueError("the reader's own error")


def run_out_of_data():
    raise StopIteration


def be_terminated():
    os.kill(os.getpid(), signal.SIGTERM)


def train_with(output, event):
    settings = ("checkpoint.every=2", "checkpoint.asynchronous=false")
    run_toy(output, *settings, events={5: lambda: event() if Crew().rank == 1 else None})


@pytest.fixture
def befall(tmp_path):
    def run(event):
        statuses = run_forked(2, train_with, tmp_path / "run", event, log_dir=tmp_path)
        return statuses, [(tmp_path / f"out-{rank}.txt").read_text() for rank in range(2)], tmp_path / "run"

    return run


def saved(run):
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


def test_a_rank_that_fails_before_a_collective_ends_the_run(befall):
    statuses, said, run = befall(raise_an_error)
    assert statuses[1] == 1
    assert statuses[0] != 0
    assert "ValueError: the reader's own error" in said[1]
    assert saved(run) == ["step-00000002", "step-00000004"]


def test_a_rank_whose_data_has_run_out_says_so_with_step_and_rank(befall):
    statuses, said, run = befall(run_out_of_data)
    assert statuses[1] == 2
    assert statuses[0] != 0
    assert "error: the training data of rank 1 has run out at step 5 of 8" in said[1]
    assert saved(run) == ["step-00000002", "step-00000004"]


def test_a_signal_to_one_rank_saves_the_same_step_on_all_and_ends_them(befall):
    statuses, said, run = befall(be_terminated)
    assert statuses == [143, 143]
    assert all("stopped by signal 15; the run's state is saved" in each for each in said)
    assert saved(run)[-1] == "step-00000005"
