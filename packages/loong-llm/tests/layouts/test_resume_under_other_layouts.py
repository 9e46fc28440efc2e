"""A run that goes on under other layouts, on other numbers of ranks, is the run of one rank."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from loong_core.train.metrics import read_rows

EXAMPLES = Path(__file__).parents[4] / "examples" / "llm"
PARTS = {
    "tensor 2 x expert 2 to step 10, pipeline 2 to 15, one rank to 20": [
        (4, "layout.tensor=2", "layout.expert=2", "train.stop_at=10"),
        (2, "layout.pipeline=2", "train.stop_at=15"),
        (1,),
    ],
    "one rank to step 5, ring 2 x expert 2 to 12, fsdp with Ulysses 2 x data 2 to 20": [
        (1, "train.stop_at=5"),
        (2, "layout.context=2", "layout.expert=2", "train.stop_at=12"),
        (4, "engine=fsdp", "layout.context=2", "layout.ulysses=2"),
    ],
}


def train(folder, parts):
    """Run `examples/llm/tiny_moe.yaml` part after part into a run folder."""
    files = {"data.train": EXAMPLES / "tiny.txt", "data.validation": EXAMPLES / "tiny_held_out.txt", "output": folder}
    for nproc, *overrides in parts:
        arguments = [EXAMPLES / "tiny_moe.yaml", "--nproc", nproc, *(f"{key}={path}" for key, path in files.items())]
        command = [sys.executable, "-m", "loong_llm.cli.main", "train", *arguments, *overrides]
        ended = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
    return folder


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    return train(tmp_path_factory.mktemp("one_rank"), [(1,)])


@pytest.mark.whole_matrix
@pytest.mark.parametrize("name", PARTS)
def test_a_run_that_goes_on_under_other_layouts_ends_with_the_loss_of_one_rank(name, one_rank, tmp_path, say):
    run = train(tmp_path / "run", PARTS[name])
    compared = subprocess.run(
        [sys.executable, "-m", "loong_core.cli.main", "compare", run, one_rank], capture_output=True, text=True
    )
    assert compared.returncode == 0, compared.stderr
    say(f"{name}:\n{compared.stdout}")
    (count,) = re.findall(r"([\d,]+) of ([\d,]+) router choices differ, in 20 steps", compared.stdout)
    different, total = (int(number.replace(",", "")) for number in count)
    assert total == 20 * 8 * 128 * 2 * 2, "steps x sequences x tokens x layers x choices"
    losses, expected = ([row["loss"] for row in read_rows(folder / "metrics.jsonl")] for folder in (run, one_rank))
    assert len(losses) == len(expected) == 20
    assert abs(losses[-1] - expected[-1]) < (1e-5 if different == 0 else 1e-3)
