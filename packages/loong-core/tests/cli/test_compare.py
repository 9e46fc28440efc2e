"""`loong compare` tells how far two runs are apart, and how many router choices differ."""

import json

import pytest
import torch
from safetensors.torch import save_file


@pytest.fixture
def run(tmp_path):
    """`run(name, losses, experts)` writes a run folder; `experts` are the choices of each step's two tokens."""

    def write(name, losses, experts=()):
        folder = tmp_path / name
        folder.mkdir()
        rows = [{"step": step, "loss": loss, "grad_norm": 2 * loss} for step, loss in losses.items()]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for step, chosen in enumerate(experts, 1):
            place = folder / "router_choices" / f"step-{step:08}"
            place.mkdir(parents=True)
            tensors = {"rows/0": torch.arange(2), "0/layers.0.router": torch.tensor(chosen, dtype=torch.uint8)}
            save_file(tensors, place / "rank-0.safetensors")
        return folder

    return write


def test_figures_of_common_steps_and_choices_are_compared(loong, run):
    one = run("one", {1: 4.0, 2: 3.0, 3: 2.0}, [[[0, 1], [2, 3]], [[0, 1], [2, 3]]])
    other = run("other", {2: 3.5, 3: 2.25, 4: 1.0}, [[[0, 1], [2, 3]], [[0, 1], [2, 4]]])
    answer = loong("compare", one, other)
    assert answer.status == 0
    assert "loss 2 0.5 0.143 2 3 2.0000000 2.2500000" in answer.flat
    assert "grad_norm 2 1 0.143 2 3" in answer.flat
    assert "1 of 8 router choices differ, in 2 steps, the first in step 2" in answer.flat


def test_runs_that_kept_no_choices_are_compared_by_their_figures(loong, run):
    answer = loong("compare", run("one", {1: 4.0}), run("other", {1: 4.0}))
    assert answer.status == 0
    assert "loss 1 0 0 1 1 4.0000000 4.0000000" in answer.flat
    assert "router" not in answer.out


def test_choices_that_one_run_kept_alone_are_told(loong, run):
    answer = loong("compare", run("one", {1: 4.0}, [[[0, 1], [2, 3]]]), run("other", {1: 4.0}))
    assert answer.status == 0
    assert "both runs kept them in no step; logging.router_choices_every=1" in answer.flat


def test_runs_without_a_common_step_are_told(loong, run):
    answer = loong("compare", run("one", {1: 4.0, 2: 3.0}), run("other", {3: 4.0}))
    assert answer.status == 2
    assert "no step in common: one has 1 to 2, the other 3 to 3" in answer.err
