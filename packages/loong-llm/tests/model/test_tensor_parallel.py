"""A model shared by tensor ranks computes what one rank computes: loss, logits, every gradient and its norm."""

import json

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from toy_models import CONFIGS, SMALL, batch_of, named_gradients, randomise

from loong_core.checkpoint.hf_export import export_hf
from loong_core.checkpoint.pieces import StatePiece
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.model import build_stages, open_model

FIRST_QWEN = {
    "model_type": "qwen",
    "hidden_size": 24,
    "kv_channels": 6,
    "num_attention_heads": 4,
    "intermediate_size": 2 * 20,
    "num_hidden_layers": 2,
    "vocab_size": 61,
}
CASES = {
    "grouped queries": (2, CONFIGS["llama, grouped queries"]),
    "one key-value head held by two ranks, every bias": (
        2,
        CONFIGS["llama, one key-value head, every bias, head_dim unlike hidden/heads"],
    ),
    "two key-value heads each held by two of four ranks": (4, CONFIGS["qwen2, tied"] | {"vocab_size": 58}),
    "qk-norm and tied tables": (2, CONFIGS["qwen3, tied, biased"]),
    "q, k and v fused in the checkpoint": (2, FIRST_QWEN),
}


def save_random(hf, folder):
    """A folder of random float64 weights of a config."""
    (folder / "config.json").write_text(json.dumps(hf))
    source = open_model(folder)
    context = ParallelContext.single()
    (model,) = build_stages(source, context, dtype=torch.float64, initialise="random")
    randomise(model)
    tensors = {}
    for parameter, placement in source.weight_map.placements(model, context):
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            tensors.setdefault(piece.name, torch.empty(piece.global_shape, dtype=torch.float64))[piece.slices] = part
    save_file(tensors, folder / "model.safetensors")


def run_rank(folder, lengths, vocab_size):
    """One rank's loss and logits, its pieces' gradients, and its share of the squared norm as megatron counts it."""
    context = ParallelContext.build(Layout(tensor=dist.get_world_size()), "cpu")
    source = open_model(folder)
    (model,) = build_stages(source, context, dtype=torch.float64)
    batch = batch_of(lengths, vocab_size)
    logits = model.logits(batch).detach()
    loss = model(batch)
    loss.sum().backward()
    pieces, squares = [], 0.0
    for parameter, placement in source.weight_map.placements(model, context):
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(parameter.grad)
        counted = getattr(parameter, "tensor_model_parallel", False) or context.tensor.rank == 0
        if counted and not getattr(parameter, "shared", False):
            squares += parameter.grad.pow(2).sum().item()
        pieces += zip(placement.pieces, placement.from_local(parameter.grad), strict=True)
    return loss.detach(), logits, pieces, squares


@pytest.mark.parametrize(("degree", "hf"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("lengths", [[7, 1, 12], [11, 11]], ids=["packed", "one length"])
def test_loss_logits_and_gradients_equal_one_rank(degree, hf, lengths, ranks, tmp_path):
    save_random(hf, tmp_path)
    source, context = open_model(tmp_path), ParallelContext.single()
    (model,) = build_stages(source, context, dtype=torch.float64)
    batch = batch_of(lengths, hf["vocab_size"])
    loss = model(batch)
    loss.sum().backward()
    expected = named_gradients(model, source.weight_map, context)

    squares = 0.0
    covered = {name: torch.zeros(gradient.shape, dtype=torch.bool) for name, gradient in expected.items()}
    for their_loss, logits, pieces, square in ranks.run(degree, run_rank, tmp_path, lengths, hf["vocab_size"]):
        torch.testing.assert_close(their_loss, loss.detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(logits, model.logits(batch).detach(), rtol=1e-10, atol=1e-12)
        for piece, gradient in pieces:
            torch.testing.assert_close(gradient, expected[piece.name][piece.slices], rtol=1e-10, atol=1e-12)
            covered[piece.name][piece.slices] = True
        squares += square
    assert all(bool(seen.all()) for seen in covered.values())
    assert squares == pytest.approx(sum(gradient.pow(2).sum().item() for gradient in expected.values()), rel=1e-10)


def export(folder, output):
    """Write what this rank holds."""
    context = ParallelContext.build(Layout(tensor=dist.get_world_size()), "cpu")
    source = open_model(folder)
    (model,) = build_stages(source, context, dtype=torch.float64)
    pieces = [
        StatePiece("weight", *each)
        for parameter, placement in source.weight_map.placements(model, context)
        for each in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
    ]
    export_hf(output, source.hf_config, pieces, context, torch.float64, max_shard_size=20_000)


def test_what_four_ranks_hold_is_written_bit_equal_without_the_padding(ranks, tmp_path):
    (tmp_path / "in").mkdir()
    save_random(CONFIGS["qwen2, tied"], tmp_path / "in")
    ranks.run(4, export, tmp_path / "in", tmp_path / "out")
    stored, written = load_file(tmp_path / "in/model.safetensors"), {}
    for file in (tmp_path / "out").glob("*.safetensors"):
        written |= load_file(file)
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in stored.items())


def draw(hf, seed):
    """This rank's pieces of freshly drawn weights."""
    context = ParallelContext.build(Layout(tensor=dist.get_world_size()), "cpu")
    source = open_model("qwen3-0.6b", hf)
    (model,) = build_stages(source, context, seed=seed)
    return [
        each
        for parameter, placement in source.weight_map.placements(model, context)
        for each in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
    ]


def test_fresh_weights_are_the_same_for_every_layout_and_follow_the_seed(ranks):
    hf = SMALL | {"head_dim": 8, "initializer_range": 0.1}
    source, context = open_model("qwen3-0.6b", hf), ParallelContext.single()
    (model,) = build_stages(source, context, seed=3)
    (other,) = build_stages(source, context, seed=4)
    assert not torch.equal(model.embedding.weight, other.embedding.weight)
    assert model.embedding.weight.std().item() == pytest.approx(0.1, rel=0.1)
    assert torch.equal(model.norm.weight, torch.ones(SMALL["hidden_size"]))
    whole = {
        piece.name: part
        for parameter, placement in source.weight_map.placements(model, context)
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
    }
    for pieces in ranks.run(4, draw, hf, 3):
        for piece, part in pieces:
            assert torch.equal(part, whole[piece.name][piece.slices]), piece.name
