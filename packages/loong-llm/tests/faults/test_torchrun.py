"""torchrun's elastic agent starts the ranks anew when one is killed, and they go on from the last checkpoint."""

import os
import signal

from train_command import TrainCommand, figures

from loong_core.checkpoint.resume_folder import published

ELASTIC = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1")


def test_a_killed_rank_leads_to_a_restart_from_the_last_checkpoint(tmp_path):
    settings = ("train.steps=16", "train.validate_every=null", "checkpoint.every=4")
    command = TrainCommand(tmp_path, *settings, torchrun=ELASTIC)
    command.wait_for_file("checkpoints/step-00000004/manifest.json")
    os.kill(command.ranks()[1], signal.SIGKILL)
    assert command.end() == 0, command.said
    before, _, after = command.said.partition("resuming after step ")
    assert "step 16/16" not in before
    step = int(after.split(",")[0])
    assert step in (4, 8, 12)
    assert f", from {tmp_path}/checkpoints/step-{step:08d}" in after
    assert [row[0] for row in figures(tmp_path)] == list(range(1, 17))
    assert [path.name for path in published(tmp_path / "checkpoints")] == ["step-00000012", "step-00000016"]
