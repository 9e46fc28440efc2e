"""A run killed at random moments of its saves ends as one that was left alone; `--random N` says how often."""

import contextlib
import os
import random
import re
import signal
from threading import Event

import pytest
from train_command import TrainCommand, figures, trained, weights_hash

from loong_core.checkpoint.resume_folder import ResumeFolder, published

LONGEST_SECONDS = 0.06
"""From the beginning of a save; about what one of this model takes until it is published."""


def kill_in_a_save(command, chance):
    """Wait for a save to begin, then a random time, then kill a random rank, or the launcher."""
    begun = set(command.output.glob("checkpoints/.step-*.saving-*"))
    pause = Event()
    while not (set(command.output.glob("checkpoints/.step-*.saving-*")) - begun):
        assert command.process.poll() is None, command.rest()
        pause.wait(0.0005)
    pause.wait(chance.uniform(0, LONGEST_SECONDS))
    victim = chance.choice([*command.ranks(), command.process.pid])
    with contextlib.suppress(ProcessLookupError):
        os.kill(victim, signal.SIGKILL)
    assert command.end() != 0, command.said


@pytest.mark.random_moments
def test_each_start_after_a_kill_resumes_from_the_last_complete_checkpoint(tmp_path, request):
    kills, seed = request.config.getoption("--random"), request.config.getoption("--random-seed")
    chance = random.Random(seed)
    settings = (f"train.steps={4 * kills}", "train.validate_every=null", "checkpoint.every=1")
    trained(tmp_path / "left_alone", *settings)
    run, resumed = tmp_path / "killed", []
    for number in range(kills + 1):
        complete = published(run / "checkpoints")
        for path in complete:
            folder = ResumeFolder(path)
            assert [folder.check_file(name) for name in folder.files] == [None] * len(folder.files)
        command = TrainCommand(run, *settings)
        if number < kills:
            kill_in_a_save(command, chance)
        else:
            assert command.end() == 0, command.said
        found = re.search(r"resuming after step (\d+), from (\S+)", command.said)
        if complete:
            assert found is not None, command.said
            assert found[2] == str(complete[-1])
            assert int(found[1]) == int(complete[-1].name.removeprefix("step-"))
        else:
            assert found is None
        resumed.append(int(found[1]) if found else 0)
    print(f"seed {seed}: resumed after steps {resumed}")
    assert resumed == sorted(resumed)
    assert figures(run) == figures(tmp_path / "left_alone")
    assert weights_hash(run) == weights_hash(tmp_path / "left_alone")
    assert not list((run / "checkpoints").glob(".*"))
