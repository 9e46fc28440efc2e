"""The benchmark of training steps runs to its end on a CPU, at a tiny size, so that it does on an accelerator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def benchmark(record, *arguments):
    """The rows that it records."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.bench.vlm", *arguments, "--record", str(record)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in record.read_text().splitlines()], done.stdout


def test_both_stacks_train_the_same_model_on_the_same_work(tmp_path):
    rows, told = benchmark(
        tmp_path / "vlm.jsonl", "--tiny", "--models", "tiny-qwen3-vl", "--stacks", "loong,transformers-sdpa"
    )
    ours, theirs = rows
    for key in ("first_loss", "last_loss"):
        assert ours[key] == pytest.approx(theirs[key], abs=2e-4)
    assert "x the fastest other stack" in told


def test_layouts_of_two_devices_have_their_trace_tables(tmp_path):
    rows, told = benchmark(
        tmp_path / "vlm.jsonl",
        "--tiny",
        "--models",
        "tiny-qwen2.5-vl",
        "--two",
        "--places",
        "pipeline 2, encoder apart",
    )
    (row,) = rows
    assert row["ranks"] == 2
    for trace in row["trace"]:
        assert {what for what, *_ in trace} == {"encode", "forward", "backward", "encoder backward"}
        assert all(stop >= start for *_, start, stop in trace)
    assert "rank 1" in told
