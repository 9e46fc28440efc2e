"""Adapters shared by tensor ranks compute, train and are written as on one rank."""

import pytest
import torch
import torch.distributed as dist
from lora_toys import SETTINGS, adapted, adapter_gradients
from toy_models import CONFIGS, batch_of, reference, save

from loong_core.nn.lora import ADAPTER_PREFIX, apply_lora, merge_lora
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.adapter import adapter_pieces, load_adapter, save_adapter
from loong_llm.model import build_stages, open_model

CASES = {
    "grouped queries": CONFIGS["qwen3, head_dim unlike hidden/heads"],
    "one key-value head held by two ranks, every bias": CONFIGS[
        "llama, one key-value head, every bias, head_dim unlike hidden/heads"
    ],
}


def run_rank(base, adapter, lengths, settings, output):
    """One rank's loss, logits, adapter gradients, squared gradient norm; writes the adapter it loaded."""
    context = ParallelContext.build(Layout(tensor=dist.get_world_size()), "cpu")
    source = open_model(base)
    stages = build_stages(source, context, dtype=torch.float64)
    _, weight_map = load_adapter(adapter, stages, source.weight_map, 2, context)
    batch = batch_of(lengths)
    loss = stages[0](batch)
    loss.sum().backward()
    pieces, squares = [], 0.0
    for parameter, placement in weight_map.placements(stages[0], context):
        if not placement.pieces[0].name.startswith(ADAPTER_PREFIX):
            assert parameter.grad is None
            continue
        if getattr(parameter, "sequence_parallel", False):
            dist.all_reduce(parameter.grad)
        counted = getattr(parameter, "tensor_model_parallel", False) or context.tensor.rank == 0
        if counted and not getattr(parameter, "shared", False):
            squares += parameter.grad.pow(2).sum().item()
        pieces += zip(placement.pieces, placement.from_local(parameter.grad), strict=True)
    held = adapter_pieces(stages, weight_map, context)
    save_adapter(output, held, settings, context, weight_map=source.weight_map, num_layers=2)
    merge_lora(stages)
    return loss.detach(), stages[0].logits(batch).detach(), pieces, squares


@pytest.mark.parametrize("hf", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("settings", [SETTINGS["every linear"], SETTINGS["dora"]], ids=["lora", "dora"])
def test_loss_gradients_merged_logits_and_folder_equal_one_rank(hf, settings, ranks, tmp_path):
    base = save(reference(hf), tmp_path / "base")
    source, stages, weight_map = adapted(base, settings)
    context = ParallelContext.single()
    held = adapter_pieces(stages, weight_map, context)
    save_adapter(tmp_path / "one", held, settings, context, weight_map=source.weight_map, num_layers=2)
    lengths = [7, 1, 12]
    loss = stages[0](batch_of(lengths))
    loss.sum().backward()
    logits = stages[0].logits(batch_of(lengths)).detach()
    expected = adapter_gradients(stages[0], weight_map)

    squares = 0.0
    arguments = (base, tmp_path / "one", lengths, settings, tmp_path / "two")
    covered = {name: torch.zeros(gradient.shape, dtype=torch.bool) for name, gradient in expected.items()}
    for their_loss, their_logits, pieces, square in ranks.run(2, run_rank, *arguments):
        torch.testing.assert_close(their_loss, loss.detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(their_logits, logits, rtol=1e-9, atol=1e-10)
        for piece, gradient in pieces:
            torch.testing.assert_close(gradient, expected[piece.name][piece.slices], rtol=1e-9, atol=1e-11)
            covered[piece.name][piece.slices] = True
        squares += square
    assert all(bool(seen.all()) for seen in covered.values())
    assert squares == pytest.approx(sum(gradient.pow(2).sum().item() for gradient in expected.values()), rel=1e-9)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def draw(base, settings):
    context = ParallelContext.build(Layout(tensor=dist.get_world_size()), "cpu")
    source = open_model(base)
    stages = build_stages(source, context)
    weight_map = apply_lora(stages, source.weight_map, 2, context, settings)
    return [(state.piece, state.tensor) for state in adapter_pieces(stages, weight_map, context)]


def test_fresh_adapters_are_the_same_for_every_layout(ranks, tmp_path):
    base = save(reference(CASES["grouped queries"]), tmp_path / "base")
    (alone,) = ranks.run(1, draw, base, SETTINGS["dora"])
    whole = {piece.name: tensor for piece, tensor in alone}
    for held in ranks.run(2, draw, base, SETTINGS["dora"]):
        for piece, tensor in held:
            torch.testing.assert_close(tensor, whole[piece.name][piece.slices], rtol=1e-6, atol=1e-6)
