"""Chosen steps are traced."""

import gzip
import json

import torch

from loong_core.config import ProfileSection
from loong_core.train.profile import StepProfiler


def profile(folder, steps, **settings):
    profiler = StepProfiler(ProfileSection(steps=[2, 3], **settings), folder, 0, torch.device("cpu"))
    for step in steps:
        profiler.begin(step)
        with torch.profiler.record_function(f"step {step}"):
            torch.ones(4).sum()
        profiler.end(step)
    profiler.close()


def traced(folder):
    events = json.loads(gzip.decompress((folder / "trace-rank-0.json.gz").read_bytes()))["traceEvents"]
    return {event["name"] for event in events if event["name"].startswith("step ")}


def test_the_trace_holds_the_chosen_steps_and_no_other(tmp_path):
    profile(tmp_path, [1, 2, 3, 4], memory=True)
    assert traced(tmp_path) == {"step 2", "step 3"}
    assert "aten::ones" in (tmp_path / "memory-rank-0.txt").read_text()


def test_what_was_traced_is_kept_when_the_run_ends_early(tmp_path):
    profile(tmp_path, [1, 2])
    assert traced(tmp_path) == {"step 2"}


def test_without_steps_nothing_is_written(tmp_path):
    StepProfiler(ProfileSection(), tmp_path / "none", 0, torch.device("cpu")).begin(1)
    assert not (tmp_path / "none").exists()
