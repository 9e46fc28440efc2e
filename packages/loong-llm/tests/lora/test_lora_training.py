"""Adapters train under the engine alike on every layout, and nothing else moves."""

import pytest
import torch
from lora_toys import SETTINGS, train
from toy_models import CONFIGS, reference, save

from loong_core.nn.lora import ADAPTER_PREFIX
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.adapter import load_adapter
from loong_llm.model import build_stages, open_model

LAYOUTS = {
    "two data ranks": (2, Layout()),
    "two tensor ranks": (2, Layout(tensor=2)),
    "two pipeline ranks": (2, Layout(pipeline=2)),
}


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
