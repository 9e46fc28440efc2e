"""A run that is stopped, however rudely, and given again is the run that was left alone, bit for bit."""

import signal

import pytest
from train_command import TrainCommand, figures, trained, weights_hash

SETTINGS = ("train.steps=16", "train.validate_every=8", "checkpoint.every=4")


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory):
    output = tmp_path_factory.mktemp("left_alone")
    trained(output, *SETTINGS)
    return output


def test_terminated_then_killed_inside_an_asynchronous_save_then_resumed(left_alone, tmp_path):
    terminated = TrainCommand(tmp_path, *SETTINGS)
    terminated.wait_for_line("step  5/16")
    terminated.process.send_signal(signal.SIGTERM)
    assert terminated.end() == 128 + signal.SIGTERM, terminated.said
    assert "the same command resumes it" in terminated.said
    stopped_at = len(figures(tmp_path))
    assert 5 <= stopped_at < 12

    killed = TrainCommand(tmp_path, *SETTINGS)
    killed.wait_for_file("checkpoints/.step-00000012.saving-*")
    killed.kill()
    assert f"resuming after step {stopped_at}" in killed.said
    assert not (tmp_path / "checkpoints" / "step-00000012").exists()

    said = trained(tmp_path, *SETTINGS)
    assert "resuming after step 8" in said
    assert figures(tmp_path) == figures(left_alone)
    assert weights_hash(tmp_path) == weights_hash(left_alone)
    assert not list((tmp_path / "checkpoints").glob(".*"))
