"""The quickstart does what the README says, from the command to a folder that transformers opens."""

import json
import os
import re
import subprocess
import sys
from collections import defaultdict

import pytest
import torch

from loong_core.train.metrics import read_rows


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory):
    """What the command printed, and its run folder."""
    output = tmp_path_factory.mktemp("quickstart") / "run"
    done = subprocess.run(
        [sys.executable, "-m", "loong_llm.cli.main", "quickstart", "--output", str(output)],
        capture_output=True,
        text=True,
        env=os.environ | {"LOONG_DEVICE": "cpu"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return done.stdout, output


def transformers_loss(folder, texts, window):
    """Held-out loss as anyone would compute it: each document in windows, every byte but the first token predicted."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.dtype == torch.float32
    by_length = defaultdict(list)
    for text in texts:
        ids = torch.tensor([*tokenizer(text).input_ids, tokenizer.eos_token_id])
        for start in range(0, len(ids) - 1, window):
            piece = ids[start : start + window + 1]
            by_length[len(piece)].append(piece)
    total, count = 0.0, 0
    for pieces in by_length.values():
        for batch in torch.stack(pieces).split(32):
            with torch.no_grad():
                logits = model(batch[:, :-1]).logits
            labels = batch[:, 1:].reshape(-1)
            total += torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels, reduction="sum").item()
            count += len(labels)
    return total / count


def test_held_out_loss_falls_by_half_below_the_bigram_models_and_transformers_agrees(quickstart):
    said, output = quickstart
    last = said.strip().splitlines()[-1]
    found = re.fullmatch(
        r"held-out loss ([\d.]+) -> ([\d.]+) \(bigram model ([\d.]+)\), ([\d,]+) tokens/s, model in (.+)", last
    )
    assert found, last
    first, final, bigram = (float(number) for number in found.groups()[:3])
    assert final <= first / 2
    assert final < bigram < first
    assert found.group(5) == str(output / "hf")
    lines = (output / "data" / "held_out.jsonl").read_text().splitlines()
    texts = [json.loads(line)["text"] for line in lines]
    exact = read_rows(output / "metrics.jsonl")[-1]["val_loss"]
    assert transformers_loss(output / "hf", texts, 256) == pytest.approx(exact, abs=1e-4)
    assert final == pytest.approx(exact, abs=1e-4)


def test_it_shows_a_sample_and_leaves_metrics_and_a_picture(quickstart):
    said, output = quickstart
    assert "a sample of its writing" in said
    assert len(read_rows(output / "metrics.jsonl")) == 500
    assert (output / "loss.png").read_bytes().startswith(b"\x89PNG")
