"""Runs of `loong-dit train`: they resume bit for bit, leave what diffusers opens, and adapters that others load."""

import json

import pytest
import torch
from dit_toys.runs import run_toy, write_cache, write_model
from dit_toys.wan import TINY
from safetensors.torch import load_file

from loong_core.train.metrics import read_rows
from loong_dit.model_source import open_source
from loong_dit.reference_model import largest_difference


@pytest.fixture(scope="module")
def toys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("toys")
    return write_model(folder / "model"), write_cache(folder / "cache")


@pytest.fixture(scope="module")
def trained(ranks, toys, tmp_path_factory):
    """A transformer's folder: adapters of a fresh model, whose output is zero, would not learn in a step."""
    output = tmp_path_factory.mktemp("trained") / "run"
    ranks.run(1, run_toy, output, *toys)
    return output / "hf" / "transformer"


def weights(output):
    return load_file(output / "hf" / "transformer" / "diffusion_pytorch_model.safetensors")


def test_a_run_trains_and_diffusers_opens_what_it_leaves(ranks, tmp_path):
    pytest.importorskip("diffusers")
    hf = {**TINY, "in_channels": 3, "out_channels": 3}
    toys = write_model(tmp_path / "model", hf), write_cache(tmp_path / "cache", channels=3)
    more = (
        "data.validation_fraction=0.25",
        "train.validate_every=2",
        "samples.every=2",
        "samples.steps=2",
        "samples.count=2",
    )
    (progress,) = ranks.run(1, run_toy, tmp_path / "run", *toys, *more)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert progress.step == len(rows) == 4
    assert rows[1]["val_samples"] == 4
    assert rows[3]["samples"] == 16
    assert rows[3]["samples_per_second"] > 0
    assert {file.name for file in (tmp_path / "run" / "samples").iterdir()} == {
        "step-00000002.png",
        "step-00000004.png",
    }
    assert json.loads((tmp_path / "run" / "hf" / "transformer" / "config.json").read_text()) == hf
    assert largest_difference(open_source(tmp_path / "run" / "hf"), frames=2, side=2) < 1e-5


def test_a_run_that_stops_and_resumes_on_more_ranks_ends_like_one_that_does_not(ranks, toys, tmp_path):
    ranks.run(1, run_toy, tmp_path / "whole", *toys)
    ranks.run(1, run_toy, tmp_path / "parts", *toys, "train.stop_at=2")
    ranks.run(2, run_toy, tmp_path / "parts", *toys)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-4, atol=1e-6, msg=name)
    losses = [[row["loss"] for row in read_rows(tmp_path / run / "metrics.jsonl")] for run in ("whole", "parts")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_run_that_resumes_on_as_many_ranks_is_bit_equal(ranks, toys, tmp_path):
    ranks.run(2, run_toy, tmp_path / "whole", *toys)
    ranks.run(2, run_toy, tmp_path / "parts", *toys, "train.stop_at=3")
    ranks.run(2, run_toy, tmp_path / "parts", *toys)
    whole, parts = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert all(torch.equal(parts[name], value) for name, value in whole.items())


def test_recomputing_every_block_changes_nothing(ranks, toys, tmp_path):
    ranks.run(1, run_toy, tmp_path / "kept", *toys)
    ranks.run(1, run_toy, tmp_path / "repeated", *toys, "recompute=full")
    kept, repeated = weights(tmp_path / "kept"), weights(tmp_path / "repeated")
    assert all(torch.equal(repeated[name], value) for name, value in kept.items())


def test_both_experts_of_a_model_of_two_are_trained_and_written_apart(ranks, toys, tmp_path):
    parts = ("transformer", "transformer_2")
    model = write_model(tmp_path / "model", parts=parts, boundary_ratio=0.5)
    ranks.run(2, run_toy, tmp_path / "run", model, toys[1], "train.steps=6")
    ranks.run(1, run_toy, tmp_path / "alone", model, toys[1], "train.steps=6")
    for part in parts:
        here = load_file(tmp_path / "run" / "hf" / part / "diffusion_pytorch_model.safetensors")
        there = load_file(tmp_path / "alone" / "hf" / part / "diffusion_pytorch_model.safetensors")
        for name, value in there.items():
            torch.testing.assert_close(here[name], value, rtol=1e-3, atol=1e-5, msg=name)
    high, low = (
        load_file(tmp_path / "run" / "hf" / part / "diffusion_pytorch_model.safetensors")["proj_out.weight"]
        for part in parts
    )
    assert high.abs().max() > 0  # drawn as zeros: both have been trained
    assert low.abs().max() > 0


@pytest.mark.parametrize("form", ["diffusers", "diffsynth"])
def test_adapters_are_written_under_the_names_of_those_who_read_them(ranks, toys, trained, tmp_path, form):
    more = ("lora.rank=4", "lora.alpha=8", f"lora.format={form}", "lora.targets=[to_q, to_v, ffn.net.*]")
    ranks.run(2, run_toy, tmp_path / "run", trained, toys[1], *more)
    files = {"diffusers": "pytorch_lora_weights.safetensors", "diffsynth": "lora.safetensors"}
    adapters = load_file(tmp_path / "run" / "hf" / files[form])
    a = {
        "diffusers": "transformer.blocks.0.attn1.to_q.lora_A.weight",
        "diffsynth": "blocks.0.self_attn.q.lora_A.default.weight",
    }[form]
    assert adapters[a].shape == (4, 24)
    assert len(adapters) == 2 * 2 * (2 + 2 + 2)
    assert any(value.abs().max() > 0 for name, value in adapters.items() if "lora_B" in name)


def test_diffusers_with_the_adapters_says_what_the_merged_model_says(ranks, toys, trained, tmp_path):
    diffusers = pytest.importorskip("diffusers")
    model = trained
    more = ("lora.rank=4", "lora.alpha=8", "train.lr=0.01")
    ranks.run(1, run_toy, tmp_path / "adapters", model, toys[1], *more)
    ranks.run(1, run_toy, tmp_path / "merged", model, toys[1], *more, "lora.merge=true")
    adapted = diffusers.WanTransformer3DModel.from_pretrained(model).eval()
    merged = diffusers.WanTransformer3DModel.from_pretrained(tmp_path / "merged" / "hf" / "transformer").eval()
    generator = torch.Generator().manual_seed(0)
    latents, text = torch.randn(1, 4, 2, 4, 4, generator=generator), torch.randn(1, 5, 16, generator=generator)
    times = torch.tensor([300.0])
    before = adapted(latents, times, text, return_dict=False)[0]
    adapted.load_lora_adapter(load_file(tmp_path / "adapters" / "hf" / "pytorch_lora_weights.safetensors"))
    after = adapted(latents, times, text, return_dict=False)[0]
    assert (after - before).abs().max() > 1e-4
    torch.testing.assert_close(merged(latents, times, text, return_dict=False)[0], after, rtol=1e-4, atol=1e-5)
