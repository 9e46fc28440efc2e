"""Mixtures of experts under the engine equal plain PyTorch on one rank: loss, gradients, norm, updates, load."""

import json

import pytest
import torch
from toy_models import SMALL, batch_of, named_gradients

from loong_core.data.batch import IGNORED_LABEL
from loong_core.device.cpu import CpuDevice
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.moe.balance import take_load
from loong_core.nn.moe.choices import differing_choices, recorded_choices
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.model import build_stages, open_model
from loong_llm.model_config import layout_faults
from loong_llm.recipes.next_token import next_token_loss

HF = {
    "model_type": "qwen3_moe",
    **SMALL,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 12,
    "mlp_only_layers": [1],
    "norm_topk_prob": True,
    "output_router_logits": True,
    "router_aux_loss_coef": 0.2,
    "router_aux_loss_scope": "layer",
    "router_z_loss_coef": 0.1,
}
MICROBATCHES = [[7, 1, 11], [13], [6, 6], [2, 9, 3]]
"""Lengths of the sequences of each microbatch of a step."""
EXACT = {"rtol": 1e-10, "atol": 1e-12}
LAYOUTS = {
    "expert 2": (2, Layout(expert=2)),
    "tensor 2, expert 2": (2, Layout(tensor=2, expert=2)),
    "expert 2, expert-tensor 2": (4, Layout(expert=2, expert_tensor=2)),
    "tensor 2, expert 2, expert-tensor 2": (4, Layout(tensor=2, expert=2, expert_tensor=2)),
    "pipeline 2, expert 2": (4, Layout(pipeline=2, expert=2)),
    "pipeline 2, tensor 2, expert-tensor 2": (4, Layout(pipeline=2, tensor=2, expert_tensor=2)),
}
UPDATED = ("tensor 2, expert 2", "tensor 2, expert 2, expert-tensor 2", "pipeline 2, expert 2")


def batches(context=None):
    """The step's microbatches, or a data rank's share of them."""
    made = [batch_of(lengths, seed=number) for number, lengths in enumerate(MICROBATCHES)]
    return made if context is None else made[context.data.rank :: context.data.size]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model folder whose weights were drawn once."""
    folder = tmp_path_factory.mktemp("qwen3_moe")
    (folder / "config.json").write_text(json.dumps(HF))
    return folder


def build(folder, context, dtype):
    """This rank's stages; the draw is the same for every layout."""
    source = open_model(folder, {"initializer_range": 0.3})
    return source, build_stages(source, context, dtype=dtype, initialise="random", seed=1)


def engine_of(folder, layout, precision):
    context = ParallelContext.build(layout, "cpu")
    settings = EngineSettings(precision=precision, clip_grad=0.1, weight_decay=0.1)
    source, stages = build(folder, context, settings.dtype)
    return MegatronEngine(stages, source.weight_map, context, CpuDevice(), settings), context


def alone(folder):
    """Loss, gradients by name, load and choices of a step in plain PyTorch."""
    context = ParallelContext.single()
    source, (model,) = build(folder, context, torch.float64)
    with recorded_choices([model], context) as choices:
        losses = [model(batch).sum() for batch in batches()]
    total = sum(losses)
    total.backward()
    tokens = sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in batches())
    gradients = {name: value / tokens for name, value in named_gradients(model, source.weight_map, context).items()}
    return total.item() / tokens, gradients, take_load([model], context), choices


def accumulate(folder, layout):
    """A step in float64: loss, load, norm, this rank's gradient boxes, and choices of its share of microbatches."""
    engine, context = engine_of(folder, layout, "fp64")
    with recorded_choices(engine.stages, context) as choices:
        result = engine.accumulate(batches(context), next_token_loss)
    boxes = [(piece.piece, piece.tensor) for piece in engine.gradient_pieces()]
    return result, engine.grad_norm(), boxes, choices, (context.data.rank, context.data.size)


@pytest.mark.parametrize(("world_size", "layout"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_loss_gradients_norm_load_and_choices_equal_one_rank(world_size, layout, folder, ranks):
    loss, gradients, load, choices = alone(folder)
    seen = {name: torch.zeros(gradient.shape, dtype=torch.int) for name, gradient in gradients.items()}
    for result, norm, boxes, their_choices, (data_rank, data_size) in ranks.run(world_size, accumulate, folder, layout):
        assert result.loss == pytest.approx(loss, rel=1e-10)
        assert result.metrics == pytest.approx(load, rel=1e-10)
        assert norm == pytest.approx(sum(each.square().sum().item() for each in gradients.values()) ** 0.5, rel=1e-10)
        for piece, part in boxes:
            torch.testing.assert_close(part, gradients[piece.name][piece.slices], **EXACT)
            seen[piece.name][piece.slices] += 1
        for name, forwards in their_choices.items():
            assert differing_choices({name: choices[name][data_rank::data_size]}, {name: forwards}) == 0
    assert all(bool((count == 1).all()) for count in seen.values())


def train(folder, layout):
    """Losses and norms of some clipped steps in float32, and this rank's boxes of weights and moments after them."""
    engine, context = engine_of(folder, layout, "fp32")
    curve = []
    for _ in range(3):
        result = engine.accumulate(batches(context), next_token_loss)
        curve.append((result.loss, engine.grad_norm()))
        engine.apply(0.01)
    weights = [(piece.piece, piece.tensor.clone()) for piece in engine.weight_pieces()]
    return curve, [(piece.key, piece.piece, piece.tensor.clone()) for piece in engine.state_pieces()], weights


@pytest.mark.parametrize("name", UPDATED)
def test_clipped_updates_and_the_state_after_them_equal_one_rank(name, folder, ranks):
    world_size, layout = LAYOUTS[name]
    ((curve, state, weights),) = ranks.run(1, train, folder, Layout())
    whole = {}
    for key, piece, part in state:
        whole.setdefault(key, torch.full(piece.global_shape, torch.nan))[piece.slices] = part
    seen = {key: torch.zeros(tensor.shape, dtype=torch.int) for key, tensor in whole.items()}
    written = {piece.name: 0 for piece, _ in weights}
    for their_curve, their_state, their_weights in ranks.run(world_size, train, folder, layout):
        assert sum(their_curve, ()) == pytest.approx(sum(curve, ()), rel=2e-5)
        for key, piece, part in their_state:
            torch.testing.assert_close(part, whole[key][piece.slices], rtol=1e-3, atol=2e-5)
            seen[key][piece.slices] += 1
        for piece, part in their_weights:
            written[piece.name] += part.numel()
    assert all(bool((count == 1).all()) for count in seen.values())
    assert written == {name: whole[f"weight/{name}"].numel() for name in written}


def accumulate_sharded(folder):
    """As `accumulate`, under the fsdp engine."""
    context = ParallelContext.build(Layout(), "cpu")
    source, stages = build(folder, context, torch.float64)
    engine = FsdpEngine(stages, source.weight_map, context, CpuDevice(), EngineSettings(precision="fp64"))
    result = engine.accumulate(batches(context), next_token_loss)
    return result, engine.grad_norm(), [(piece.piece, piece.tensor) for piece in engine.gradient_pieces()]


def test_sharded_experts_equal_one_rank(folder, ranks):
    loss, gradients, load, _ = alone(folder)
    for result, norm, boxes in ranks.run(2, accumulate_sharded, folder):
        assert result.loss == pytest.approx(loss, rel=1e-10)
        assert result.metrics == pytest.approx(load, rel=1e-10)
        assert norm == pytest.approx(sum(each.square().sum().item() for each in gradients.values()) ** 0.5, rel=1e-10)
        for piece, part in boxes:
            torch.testing.assert_close(part, gradients[piece.name][piece.slices], **EXACT)


def test_layouts_that_do_not_fit_the_experts_are_faults(folder):
    config = open_model(folder).config
    faults = [str(fault) for fault in layout_faults(config, Layout(expert=3, expert_tensor=5), 15)]
    assert any("3 does not divide the model's 8 experts" in fault for fault in faults)
    assert any("layout.expert_tensor: 5 does not divide" in fault for fault in faults)


def test_an_auxiliary_loss_over_all_layers_together_is_refused_on_pipeline_ranks(folder):
    config = open_model(folder, {"router_aux_loss_scope": "model"}).config
    (fault,) = layout_faults(config, Layout(pipeline=2), 2)
    assert "set model.overrides.router_aux_loss_scope=layer" in str(fault)
