"""A run that goes on under other layouts, on other numbers of ranks, is the run of one rank."""

import sys
from pathlib import Path

import pytest
import torch
from layout_choices import differing

from loong_core.parallel.launch import launch
from loong_core.train.metrics import read_rows

EXAMPLES = Path(__file__).parents[4] / "examples" / "llm"
HERE = Path(__file__).parent
PARTS = [
    (4, "layout.tensor=2", "layout.expert=2", "train.stop_at=10"),
    (2, "layout.pipeline=2", "train.stop_at=15"),
    (1,),
]


def train(folder, parts):
    """Run `examples/llm/tiny_moe.yaml` part after part; losses by step, and what routers chose on each rank."""
    (folder / "choices").mkdir(parents=True)
    files = {"data.train": EXAMPLES / "tiny.txt", "data.validation": EXAMPLES / "tiny_held_out.txt", "output": folder}
    for nproc, *overrides in parts:
        arguments = ["train", EXAMPLES / "tiny_moe.yaml", *(f"{key}={path}" for key, path in files.items()), *overrides]
        command = [sys.executable, HERE / "recorded_train.py", folder / "choices", *arguments]
        assert launch([str(part) for part in command], nproc, log_dir=folder / "logs") == 0
    losses = {row["step"]: row["loss"] for row in read_rows(folder / "metrics.jsonl")}
    return losses, [torch.load(path) for path in sorted((folder / "choices").glob("*.pt"))]


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one_rank"), [(1,)])


@pytest.mark.whole_matrix
def test_four_ranks_then_two_then_one_end_with_the_loss_of_one_rank(one_rank, tmp_path, say):
    losses, (expected,) = one_rank
    found, choices = train(tmp_path, PARTS)
    assert sorted(found) == list(range(1, 21))
    different, total = differing(choices, expected)
    distance = abs(found[20] - losses[20])
    say(
        f"tensor 2 x expert 2 to step 10, pipeline 2 to 15, one rank to 20: loss {found[20]:.7f}, on one rank "
        f"{losses[20]:.7f}; {different} of {total:,} router choices differ"
    )
    assert total >= 20 * 8 * 128 * 2 * 2, "steps x sequences x tokens x layers x choices"
    assert distance < (1e-5 if different == 0 else 1e-3)
