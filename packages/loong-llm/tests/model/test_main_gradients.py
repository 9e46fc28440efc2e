"""Gradients that layers add to the engine's running sums are those of autograd, however they are communicated."""

import json

import pytest
import torch
from toy_models import CONFIGS, batch_of, named_gradients

from loong_core.device.cpu import CpuDevice
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.model import build_stages, open_model
from loong_llm.recipes.next_token import next_token_loss

LENGTHS = [[7, 2], [9], [4, 4], [3, 1, 5]]
CASES = {
    "tied tables, norms and biases": (2, Layout(), CONFIGS["qwen3, tied, biased"]),
    "tied tables on one tensor rank each": (2, Layout(tensor=2), CONFIGS["qwen3, tied, biased"]),
    "key-value heads held by two ranks": (
        2,
        Layout(tensor=2),
        CONFIGS["llama, grouped queries"] | {"num_key_value_heads": 1},
    ),
}


def build(folder, context, dtype=torch.float64):
    source = open_model(folder, {"initializer_range": 0.3})
    return source, build_stages(source, context, dtype=dtype, initialise="random", seed=1)


def gradients(folder, layout, overlapped):
    """Loss and gradient pieces of two steps, the second on sums that the first left."""
    context = ParallelContext.build(layout, "cpu")
    source, stages = build(folder, context)
    settings = EngineSettings(precision="fp64", overlap_grad_reduce=overlapped, bucket_size=300 if overlapped else None)
    engine = MegatronEngine(stages, source.weight_map, context, CpuDevice(), settings)
    mine = [batch_of(lengths, seed=number) for number, lengths in enumerate(LENGTHS)]
    mine = mine[context.data.rank :: context.data.size]
    for _ in range(2):
        loss = engine.accumulate(mine, next_token_loss)
    assert all(parameter.grad is None for stage in stages for parameter in stage.parameters())
    return loss.loss, [(each.piece, each.tensor.clone()) for each in engine.gradient_pieces()]


@pytest.mark.parametrize("overlapped", [False, True], ids=["reduced at the end", "reduced meanwhile"])
@pytest.mark.parametrize(("degree", "layout", "hf"), CASES.values(), ids=CASES)
def test_gradients_under_the_engine_equal_autograds(degree, layout, hf, overlapped, ranks, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(hf))
    source, (model,) = build(tmp_path, ParallelContext.single())
    batches = [batch_of(lengths, seed=number) for number, lengths in enumerate(LENGTHS)]
    tokens = sum(int((batch.labels >= 0).sum()) for batch in batches)
    loss = sum(model(batch).sum() for batch in batches) / tokens
    loss.backward()
    expected = named_gradients(model, source.weight_map, ParallelContext.single())
    seen = set()
    for their_loss, pieces in ranks.run(degree, gradients, tmp_path, layout, overlapped):
        assert their_loss == pytest.approx(float(loss.detach()), abs=1e-12)
        for piece, gradient in pieces:
            torch.testing.assert_close(gradient, expected[piece.name][piece.slices], rtol=1e-10, atol=1e-12)
            seen.add(piece.name)
    assert seen == expected.keys()
