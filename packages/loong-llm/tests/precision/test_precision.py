"""A built model with products in 8 bits: which layers, what they compute, what a step holds, and what falls back."""

import json

import pytest
import torch
from toy_models import SMALL, batch_of, randomise

from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_core.precision.apply import apply_precision
from loong_core.precision.settings import PrecisionSettings
from loong_core.precision.step import StepPrecision
from loong_core.precision.table import Row, Table, Work
from loong_llm.model import build_stages, open_model

CONTEXT = ParallelContext.single()
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
CONFIGS = {
    "dense": {"model_type": "qwen3", **SMALL, **SIZES},
    "experts": {
        "model_type": "qwen3_moe", **SMALL, **SIZES, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 128, "norm_topk_prob": True,
    },
}  # fmt: skip
BATCH = batch_of([13, 20])


@pytest.fixture
def built(tmp_path):
    """A model of a kind with the settings applied: the module, and what became of its layers."""

    def build(kind="dense", table=None, **settings):
        (tmp_path / "config.json").write_text(json.dumps(CONFIGS[kind]))
        source = open_model(tmp_path)
        (stage,) = build_stages(source, CONTEXT, dtype=torch.float64)
        randomise(stage)
        for parameter in stage.parameters():
            if parameter.ndim > 1:
                parameter.data.mul_(0.2)
        number = source.config.num_layers
        return stage, apply_precision([stage], source.weight_map, number, CONTEXT, PrecisionSettings(**settings), table)

    return build


def step(stage):
    """Loss and gradients of a microbatch."""
    stage.zero_grad()
    loss = stage(BATCH).sum()
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in stage.named_parameters()}


@pytest.mark.parametrize(
    ("kind", "recipe"),
    [("dense", "blockwise"), ("dense", "rowwise"), ("dense", "tensorwise"), ("experts", "blockwise")],
)
def test_loss_and_gradients_stay_near_those_of_whole_products(built, kind, recipe):
    exact_loss, exact = step(built(kind, recipe="bf16")[0])
    stage, applied = built(kind, recipe=recipe)
    loss, gradients = step(stage)
    assert len(applied.layers) == (8 if kind == "dense" else 6)
    assert loss != exact_loss
    assert loss == pytest.approx(exact_loss, rel=0.02)
    for name, gradient in gradients.items():
        error = (gradient - exact[name]).norm() / exact[name].norm()
        # Where tokens go to experts by small differences, some go to another.
        assert 0 < error < (0.25 if kind == "dense" else 0.6), name


def test_overrides_by_pattern_hold_and_the_last_that_matches_wins(built):
    overrides = {"layers.0.*": "bf16", "layers.0.mlp.down_proj": "rowwise"}
    _, applied = built(overrides=overrides)
    assert {layer.name: layer.recipe for layer in applied.layers} == {
        "layers.0.feed_forward.down": "rowwise",
        "layers.1.attention.qkv": "blockwise",
        "layers.1.attention.output": "blockwise",
        "layers.1.feed_forward.gate_up": "blockwise",
        "layers.1.feed_forward.down": "blockwise",
    }
    assert str(applied) == "layers with products in 8 bits: 1 rowwise, 4 blockwise"


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"q_prj": "bf16"}, "did you mean q_proj?"),
        ({"q_proj": "bf16"}, "one matrix here, are given bf16 and blockwise"),
        ({"lm_head": "bf16"}, "matches nothing"),
    ],
)
def test_overrides_that_cannot_hold_are_told(built, overrides, words):
    with pytest.raises(UserError, match=r"fp8\.overrides") as told:
        built(overrides=overrides)
    assert words in str(told.value)


def test_experts_have_no_rowwise_products_and_say_so(built):
    _, applied = built("experts", recipe="rowwise")
    assert {layer.recipe for layer in applied.layers} == {"rowwise"}
    assert applied.left == ("2 left in bf16: experts have no rowwise products",)


def test_weights_are_rounded_once_a_step(built):
    stage, applied = built()
    precision = StepPrecision(applied.layers, hold=True)
    weight = stage.layers["0"].feed_forward.down.weight
    with precision.step():
        before = stage(BATCH).sum().item()
        with torch.no_grad():
            weight.mul_(1.5)
        assert stage(BATCH).sum().item() == before
    with precision.step():
        assert stage(BATCH).sum().item() != before
    with StepPrecision(applied.layers, hold=False).step():
        after = stage(BATCH).sum().item()
        with torch.no_grad():
            weight.mul_(1.5)
        assert stage(BATCH).sum().item() != after


@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_layers_whose_errors_exceed_the_bound_go_back_and_are_told(built, kind):
    exact = step(built(kind, recipe="bf16")[0])[0]
    stage, applied = built(kind)
    said = []
    precision = StepPrecision(applied.layers, hold=True, error_bound=1e-3, say=said.append)
    with precision.step():
        assert step(stage)[0] != exact
    assert len(said) == len(applied.layers)
    assert all("goes back to bf16: rounding its" in line for line in said)
    assert precision.metrics() == {"fp8_layers": 0.0}
    with precision.step():
        assert step(stage)[0] == pytest.approx(exact, rel=1e-12)
    assert len(said) == len(applied.layers)


def test_layers_within_the_bound_stay(built):
    stage, applied = built()
    precision = StepPrecision(applied.layers, hold=True, error_bound=0.06)
    with precision.step():
        step(stage)
    assert precision.metrics() == {"fp8_layers": 1.0}


def test_adaptive_layers_follow_the_table_at_each_number_of_tokens(built):
    exact = step(built(recipe="bf16")[0])[0]
    always = step(built()[0])[0]
    rows = [
        Row(Work("linear", 256, 128), tokens, {"bf16": 10.0, "blockwise": cost})
        for tokens, cost in ((16, 20.0), (64, 5.0))
    ]
    said = []
    for at, expected in ((33, always), (20, exact)):
        stage, applied = built(recipe="adaptive", table=Table("a card", "today", tuple(rows)))
        # 33 tokens lie where 8 bits win by interpolation; moved rows put them where bf16 does.
        rows = [Row(row.work, row.tokens * 4, row.microseconds) for row in rows]
        precision = StepPrecision(applied.layers, hold=True, adaptive=applied.adaptive, say=said.append)
        with precision.step():
            assert step(stage)[0] == pytest.approx(expected, rel=1e-12), at
    assert any("adaptive precision: linear 128 to 256, 33 tokens: blockwise" in line for line in said)
    assert any("33 tokens: bf16" in line for line in said)


def test_adaptive_without_measurements_is_told(built):
    with pytest.raises(UserError, match="run `loong tune` on it"):
        built(recipe="adaptive")
