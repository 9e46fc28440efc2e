"""With products in 8 bits a layout still computes what one rank does, wherever it cuts at multiples of a scale's reach.

Scales are powers of two over 128 elements of a row, or 128 x 128 of a weight. Ranks that share heads, columns, layers,
experts or data leave these whole, so in float64 the same numbers are rounded to the same 8 bits. Context ranks cut a
sequence's tokens, over which weight gradients are scaled: those differ by their rounding.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from layout_cases import MODELS, Case, batches
from layout_ranks import FP64, Boxes, engine_of, save_model
from test_layout_matrix import assembled, furthest, relative

from loong_core.nn.decoder import Decoder
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.precision.apply import apply_precision
from loong_core.precision.settings import Choice, PrecisionSettings
from loong_core.precision.step import StepPrecision
from loong_llm.model import open_model
from loong_llm.recipes.next_token import next_token_loss

WIDE = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 128,
}  # fmt: skip
WIDE_MODELS = {
    "wide": MODELS["dense"] | WIDE,
    "wide experts": MODELS["experts"] | WIDE | {"num_experts": 4, "moe_intermediate_size": 256, "mlp_only_layers": []},
}
CASES = {
    "tensor 2": Case(2, Layout(tensor=2), "wide"),
    "pipeline 2": Case(2, Layout(pipeline=2), "wide"),
    "data 2": Case(2, Layout(), "wide"),
    "fsdp 2": Case(2, Layout(), "wide", engine="fsdp"),
    "expert 2": Case(2, Layout(expert=2), "wide experts"),
    "expert 2, expert-tensor 2": Case(4, Layout(expert=2, expert_tensor=2), "wide experts"),
}

Step = tuple[float, float, Boxes]


def step_in_bits(case: Case, folder: Path, recipe: Choice) -> Step:
    """On a rank: loss, norm and this rank's gradients."""
    context = ParallelContext.build(case.layout, "cpu")
    source = open_model(folder)
    held: list[StepPrecision] = []

    def prepare(stages: list[Decoder]) -> None:
        applied = apply_precision(
            stages, source.weight_map, source.config.num_layers, context, PrecisionSettings(recipe=recipe)
        )
        assert recipe == "bf16" or (applied.layers and not applied.left)
        held.append(StepPrecision(applied.layers, hold=case.engine == "megatron"))

    engine = engine_of(case, folder, context, FP64, prepare)
    engine.precision = held[0]
    mine = batches(case.data)[context.data.rank :: context.data.size]
    loss = engine.accumulate(mine, next_token_loss)
    return loss.loss, engine.grad_norm(), [(each.piece, each.tensor.clone()) for each in engine.gradient_pieces()]


@pytest.fixture(scope="module")
def alone(ranks, tmp_path_factory):
    """By model: its folder, and one rank's step with products in 8 bits and with whole ones."""
    found = {}
    for model, config in WIDE_MODELS.items():
        MODELS[model] = config
        folder = save_model(model, tmp_path_factory.mktemp("wide"))
        steps = [ranks.run(1, step_in_bits, Case(1, Layout(), model), folder, how)[0] for how in ("blockwise", "bf16")]
        found[model] = (folder, *steps)
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_step_in_8_bits_equals_one_rank(name, ranks, alone):
    case = CASES[name]
    folder, (loss, norm, gradients), (whole_loss, _, _) = alone[case.model]
    assert relative(loss, whole_loss) > 1e-6  # products were in 8 bits
    steps = ranks.run(case.ranks, step_in_bits, case, folder, "blockwise", timeout=300)
    assert max(relative(each[0], loss) for each in steps) < 1e-10
    assert max(relative(each[1], norm) for each in steps) < 1e-10
    assert furthest([each[2] for each in steps], assembled(gradients)) < 1e-10
