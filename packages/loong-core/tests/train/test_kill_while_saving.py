"""A rank killed at any stage of a save: the next start resumes from a complete checkpoint and says which."""

import os
import signal

import pytest
from forked_ranks import run_forked
from toy_run import run_toy

from loong_core.checkpoint.resume import Checkpointer
from loong_core.parallel.crew import Crew
from loong_core.train import loop

EVERY = ("checkpoint.every=2", "checkpoint.keep=2")


class Deadly(Checkpointer):
    """Ends the process of one rank when the save of step 4 reaches a stage."""

    victim, stage = 0, ""

    def __init__(self, *arguments, at_stage, **options):
        def fall(stage, folder):
            at_stage(stage, folder)
            if stage == self.stage and "step-00000004" in folder.name and Crew().rank == self.victim:
                os.kill(os.getpid(), signal.SIGKILL)

        super().__init__(*arguments, at_stage=fall, **options)


def train_and_fall(output, victim, stage):
    Deadly.victim, Deadly.stage = victim, stage
    loop.Checkpointer = Deadly
    run_toy(output, *EVERY)


def train(output):
    progress, weight = run_toy(output, *EVERY)
    print(f"ended at step {progress.step} with {weight!r}")


def last_line(log_dir):
    return (log_dir / "out-0.txt").read_text().splitlines()[-1]


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("left_alone")
    assert run_forked(2, train, folder / "run", log_dir=folder) == [0, 0]
    return last_line(folder)


@pytest.mark.parametrize(
    ("victim", "stage", "step"),
    [
        *((victim, stage, 2) for victim in (0, 1) for stage in ("begun", "writing", "durable")),
        (0, "indexed", 2),
        (0, "published", 4),
        (0, "pruned", 4),
    ],
)
def test_the_next_start_resumes_from_a_complete_checkpoint_and_says_which(left_alone, tmp_path, victim, stage, step):
    run = tmp_path / "run"
    statuses = run_forked(2, train_and_fall, run, victim, stage, log_dir=tmp_path / "first")
    assert statuses[victim] == -signal.SIGKILL
    assert statuses[1 - victim] != 0
    assert run_forked(2, train, run, log_dir=tmp_path / "second") == [0, 0]
    said = (tmp_path / "second" / "out-0.txt").read_text()
    assert f"resuming after step {step}, from {run}/checkpoints/step-{step:08d}\n" in said
    assert last_line(tmp_path / "second") == left_alone
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000006", "step-00000008"]
