"""Adapters train under the engine alike on every layout, and nothing else moves."""

import pytest
import torch
import torch.distributed as dist
from lora_toys import SETTINGS
from toy_models import CONFIGS, batch_of, reference, save

from loong_core.device.cpu import CpuDevice
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.lora import ADAPTER_PREFIX, apply_lora
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.adapter import load_adapter, save_adapter
from loong_llm.model import build_stages, open_model
from loong_llm.recipes.next_token import next_token_loss

LAYOUTS = {
    "two data ranks": (2, Layout()),
    "two tensor ranks": (2, Layout(tensor=2)),
    "two pipeline ranks": (2, Layout(pipeline=2)),
}


def train(base, layout, settings, adapter=None):
    """Losses and gradient norms of three steps, the weights after them by name; saves the adapter."""
    context = ParallelContext.build(layout, "cpu")
    source = open_model(base)
    stages = build_stages(source, context)
    weight_map = apply_lora(stages, source.weight_map, 2, context, settings)
    engine = MegatronEngine(stages, weight_map, context, CpuDevice(), EngineSettings(precision="fp32"))
    curve = []
    for step in range(3):
        batches = [batch_of([7, 5, 4], seed=10 * step + number) for number in range(4)]
        own = batches[context.data.rank :: context.data.size]
        loss = engine.accumulate(own, next_token_loss)
        curve.append((loss.loss, engine.grad_norm()))
        engine.apply(0.05)
    if adapter is not None:
        held = engine.weight_pieces()
        save_adapter(adapter, held, settings, context, weight_map=source.weight_map, num_layers=2)
    mine = [(state.piece, state.tensor.clone()) for state in engine.weight_pieces()]
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole = {}
    for piece, values in (each for rank in everyone for each in rank):
        whole.setdefault(piece.name, torch.full(piece.global_shape, torch.nan))[piece.slices] = values
    return curve, whole


@pytest.mark.parametrize("settings", [SETTINGS["every linear"], SETTINGS["dora"]], ids=["lora", "dora"])
def test_losses_norms_and_adapters_are_those_of_one_rank(ranks, tmp_path, settings):
    base = save(reference(CONFIGS["qwen3, head_dim unlike hidden/heads"]), tmp_path / "base")
    ((curve, weights),) = ranks.run(1, train, base, Layout(), settings, tmp_path / "adapter")
    start = {
        name: value.float()
        for name, value in reference(CONFIGS["qwen3, head_dim unlike hidden/heads"]).state_dict().items()
    }
    for name, value in start.items():
        assert torch.equal(weights[name], value), f"{name} was trained"
    assert curve[2][0] < curve[0][0]
    for size, layout in LAYOUTS.values():
        their_curve, their_weights = ranks.run(size, train, base, layout, settings)[0]
        for (loss, norm), (their_loss, their_norm) in zip(curve, their_curve, strict=True):
            assert their_loss == pytest.approx(loss, rel=1e-5)
            assert their_norm == pytest.approx(norm, rel=1e-4)
        for name, value in weights.items():
            torch.testing.assert_close(their_weights[name], value, rtol=2e-3, atol=2e-4, msg=name)
    stages = build_stages(open_model(base), ParallelContext.single())
    _, weight_map = load_adapter(tmp_path / "adapter", stages, open_model(base).weight_map, 2, ParallelContext.single())
    for parameter, placement in weight_map.placements(stages[0], ParallelContext.single()):
        if placement.pieces[0].name.startswith(ADAPTER_PREFIX):
            assert torch.equal(parameter, weights[placement.pieces[0].name])
