"""The quickstart of fine-tuning, in a few steps: what it says, and an adapter that the peft library opens."""

import re

import pytest
import torch
from text_toys import byte_model

from loong_llm.inference import open_for_inference
from loong_llm.quickstart_sft import Outcome, quickstart_sft, write_quickstart_questions

LAST = re.compile(
    r"held-out loss ([\d.]+) -> ([\d.]+) \(-([\d.]+) %\), (-?[\d.]+) % below that of swapped answers \(([\d.]+)\), "
    r"written to (.+)"
)


@pytest.mark.parametrize("lora", [True, False], ids=["lora", "whole"])
def test_it_lowers_the_held_out_loss_shows_an_answer_and_leaves_what_others_open(tmp_path, capsys, lora):
    base = byte_model(tmp_path / "base", max_position_embeddings=512)
    write_quickstart_questions(tmp_path / "run" / "data")
    quickstart_sft(tmp_path / "run", base, lora=lora, steps=8)
    said = capsys.readouterr().out
    assert "a question that was held out: What does " in said
    assert "\nbefore: " in said
    assert "\nafter: " in said
    found = LAST.fullmatch(said.strip().splitlines()[-1])
    assert found, said
    before, after, swapped = float(found[1]), float(found[2]), float(found[5])
    assert after < before
    assert float(found[3]) == pytest.approx(100 * (1 - after / before), abs=0.06)
    assert float(found[4]) == pytest.approx(100 * (1 - after / swapped), abs=0.06)
    assert found[6] == str(tmp_path / "run" / ("adapter" if lora else "hf"))
    if lora:
        assert_peft_and_we_agree(base, tmp_path / "run" / "adapter")


@torch.no_grad()
def assert_peft_and_we_agree(base, adapter):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from loong_core.data.batch import PackedBatch

    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), adapter).eval()
    tokens = torch.arange(60) + 30
    ours = open_for_inference(base, torch.device("cpu"), adapter=adapter).decoder
    logits = ours.logits(PackedBatch.from_lengths(tokens, tokens, [60]))
    torch.testing.assert_close(logits, theirs(tokens[None]).logits[0], rtol=1e-5, atol=1e-5)
    plain = open_for_inference(base, torch.device("cpu")).decoder
    assert float((plain.logits(PackedBatch.from_lengths(tokens, tokens, [60])) - logits).abs().max()) > 1e-3


def test_the_last_line_has_the_figures():
    said = "held-out loss 2.0000 -> 1.5000 (-25.0 %), 6.2 % below that of swapped answers (1.6000)"
    assert str(Outcome(2.0, 1.5, 1.6)) == said
