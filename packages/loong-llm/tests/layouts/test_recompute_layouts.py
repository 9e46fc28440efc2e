"""Under layouts of ranks a step is the same, bit for bit, where parts repeat their forward or use the host's memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from layout_cases import Case, batches
from layout_ranks import FP64, Boxes, engine_of, save_model
from torch import Tensor

from loong_core.device.cpu import CpuDevice
from loong_core.engine.base import StepLoss
from loong_core.nn.parts import ALL_BLOCKS, NOTHING, Parts
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.recipes.next_token import next_token_loss

CASES = {
    "pipeline 2, virtual 2, tensor 2, expert 2": (
        Case(4, Layout(pipeline=2, virtual_pipeline=2, tensor=2, expert=2), "experts"),
        [(ALL_BLOCKS, NOTHING), (Parts(modules=("feed_forward", "layers.0.attention", "head")), NOTHING)],
    ),
    "ring 2, Ulysses 2, tied": (
        Case(4, Layout(context=4, ulysses=2), "tied"),
        [(ALL_BLOCKS, ALL_BLOCKS), (Parts(blocks=1), NOTHING)],
    ),
    "fsdp, experts": (
        Case(2, Layout(), "experts", engine="fsdp"),
        [(ALL_BLOCKS, NOTHING), (Parts(modules=("attention", "feed_forward.experts")), ALL_BLOCKS)],
    ),
}

Step = tuple[StepLoss, float, Boxes]


def steps(case: Case, choices: list[tuple[Parts, Parts]], folder: Path) -> list[Step]:
    """On a rank: one step without, and one with each choice of what is recomputed and offloaded."""
    context = ParallelContext.build(case.layout, "cpu")
    mine = batches(case.data)[context.data.rank :: context.data.size]
    found = []
    for recompute, offload in [(NOTHING, NOTHING), *choices]:
        engine = engine_of(
            case,
            folder,
            context,
            FP64,
            lambda stages, recompute=recompute, offload=offload: keep_less(
                stages, context, CpuDevice(), recompute=recompute, offload=offload, least_bytes=0
            ),
        )
        loss = engine.accumulate(mine, next_token_loss)
        gradients: list[tuple[object, Tensor]] = [
            (piece.piece, piece.tensor.clone()) for piece in engine.gradient_pieces()
        ]
        found.append((loss, engine.grad_norm(), gradients))
    return found


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_same_bit_for_bit(name, ranks, tmp_path):
    case, choices = CASES[name]
    for rank in ranks.run(case.ranks, steps, case, choices, save_model(case.model, tmp_path), timeout=300):
        (loss, norm, gradients), *others = rank
        for same_loss, same_norm, same_gradients in others:
            assert same_loss == loss  # with the load of experts, counted once
            assert same_norm == norm
            assert [piece for piece, _ in same_gradients] == [piece for piece, _ in gradients]
            assert all(torch.equal(one, other) for (_, one), (_, other) in zip(gradients, same_gradients, strict=True))
