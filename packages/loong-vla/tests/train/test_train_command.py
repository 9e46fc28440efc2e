"""The train command from a dataset to a policy's folder: alone and on two ranks, stopped and resumed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_toys import toy_run

from loong_vla.policy_runner import PolicyRunner


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "loong_vla.cli.main", *arguments], capture_output=True, text=True, timeout=300
    )


def rows(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run from beginning to end, by the command."""
    folder = tmp_path_factory.mktemp("straight")
    done = command("train", str(toy_run(folder, data__validation_fraction=0.4)))
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_leaves_metrics_and_a_policy_that_acts(straight: Path) -> None:
    figures = rows(straight / "run")
    assert [row["step"] for row in figures] == [1, 2, 3, 4]
    assert all(np.isfinite(row["loss"]) and row["samples"] == 4 * row["step"] for row in figures)
    assert figures[-1]["val_loss"] > 0
    runner = PolicyRunner(straight / "run" / "pretrained_model", device="cpu")
    pictures = {camera: np.zeros((32, 32, 3), np.uint8) for camera in runner.config.cameras}
    actions = runner.act([pictures], [np.zeros(4, np.float32)], ["task 0"])
    assert actions.shape == (1, 4, 3)
    assert np.isfinite(actions).all()


def test_two_ranks_and_a_run_that_was_stopped_take_the_same_steps(straight: Path, tmp_path: Path) -> None:
    run = str(toy_run(tmp_path, data__validation_fraction=0.4, output=str(tmp_path / "ranks")))
    assert command("train", run, "train.stop_at=2").returncode == 0
    done = command("train", run, "--nproc", "2")
    assert done.returncode == 0, done.stderr
    ours = [row["loss"] for row in rows(tmp_path / "ranks")]
    np.testing.assert_allclose(ours, [row["loss"] for row in rows(straight / "run")], rtol=2e-5)


def test_check_tells_what_a_run_would_be(tmp_path: Path) -> None:
    done = command("check", str(toy_run(tmp_path)))
    assert done.returncode == 0, done.stderr
    assert "21 samples in 3 episodes of 1 dataset" in done.stdout
    assert "3 of 3 episodes are shorter" not in done.stdout
    assert "no faults" in done.stdout
