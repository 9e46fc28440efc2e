"""What one rank of a case computes: a step in float64, then clipped steps in float32."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from layout_cases import MODELS, Case, batches
from layout_choices import Choices
from safetensors.torch import save_file
from torch import Tensor
from toy_models import named_gradients, randomise

from loong_core.checkpoint.pieces import Piece
from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.device.cpu import CpuDevice
from loong_core.engine.base import Engine
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.decoder import Decoder
from loong_core.nn.moe.choices import ChoicesOfRows, Rows, by_microbatch, own_rows, recorded_choices
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.model import build_stages, open_model
from loong_llm.recipes.next_token import next_token_loss

STEPS = 10
RATE = 0.001
FP32 = EngineSettings(precision="fp32", clip_grad=0.5, weight_decay=0.1, eps=1e-4)
FP64 = EngineSettings(precision="fp64")

Boxes = list[tuple[Piece, Tensor]]


@dataclass(frozen=True)
class Step:
    """A step without its update.

    Attributes:
        loss, norm: of the global batch.
        gradients: this rank's boxes.
        choices: of this rank's tokens.
    """

    loss: float
    norm: float
    gradients: Boxes
    choices: Choices


@dataclass(frozen=True)
class Outcome:
    """All that is compared.

    Attributes:
        exact: a step in float64.
        first: the first in float32.
        updated: this rank's boxes of the weights after its update.
        curve: loss and norm of `STEPS` float32 steps.
        choices: of all of them.
    """

    exact: Step
    first: Step
    updated: Boxes
    curve: list[tuple[float, float]]
    choices: Choices


def save_model(name: str, folder: Path) -> Path:
    """A folder of random float64 weights of one of the models, norms and biases drawn too."""
    (folder / "config.json").write_text(json.dumps(MODELS[name]))
    source, context = open_model(folder), ParallelContext.single()
    (model,) = build_stages(source, context, dtype=torch.float64, initialise="random")
    randomise(model)
    tensors: dict[str, Tensor] = {}
    for parameter, placement in source.weight_map.placements(model, context):
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            tensors.setdefault(piece.name, torch.empty(piece.global_shape, dtype=torch.float64))[piece.slices] = part
    save_file(tensors, folder / "model.safetensors")
    return folder


def alone(folder: Path, data: str) -> tuple[float, dict[str, Tensor], Choices]:
    """Loss, gradients by name, and choices of a step in float64, in plain PyTorch on one rank."""
    torch.set_num_threads(1)
    source, context = open_model(folder), ParallelContext.single()
    (model,) = build_stages(source, context, dtype=torch.float64)
    whole = batches(data)
    with recorded_choices([model], context) as recorded:
        total = sum(model(batch).sum() for batch in whole)
    total.backward()
    tokens = sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in whole)
    gradients = {name: value / tokens for name, value in named_gradients(model, source.weight_map, context).items()}
    return total.item() / tokens, gradients, _of_step(0, by_microbatch(recorded, own_rows(whole, context)))


def run_case(case: Case, folder: Path) -> Outcome:
    """This rank's part of a case."""
    context = ParallelContext.build(case.layout, "cpu")
    mine = batches(case.data)[context.data.rank :: context.data.size]
    rows = own_rows(mine, context)
    engine = engine_of(case, folder, context, FP64)
    exact = _step(engine, context, mine, rows)
    engine = engine_of(case, folder, context, FP32)
    curve, choices = [], {}
    for number in range(STEPS):
        step = _step(engine, context, mine, rows, number)
        engine.apply(RATE)
        if number == 0:
            first = step
            updated = [(piece.piece, piece.tensor.clone()) for piece in engine.weight_pieces()]
        curve.append((step.loss, step.norm))
        choices |= step.choices
    return Outcome(exact, first, updated, curve, choices)


def one_rank(model: str, data: str, folder: Path) -> Outcome:
    """The same on a rank by itself."""
    return run_case(Case(1, Layout(), model, data), folder)


def engine_of(
    case: Case,
    folder: Path,
    context: ParallelContext,
    settings: EngineSettings,
    prepare: Callable[[list[Decoder]], Any] = lambda stages: None,
) -> Engine:
    """The case's model under its engine; `prepare` is given the stages before."""
    source = open_model(folder)
    stages = build_stages(source, context, dtype=settings.dtype)
    prepare(stages)
    if case.engine == "fsdp":
        return FsdpEngine(stages, source.weight_map, context, CpuDevice(), settings)
    return MegatronEngine(
        stages, source.weight_map, context, CpuDevice(), settings, hidden_size=source.config.hidden_size
    )


def _step(
    engine: Engine,
    context: ParallelContext,
    microbatches: list[PackedBatch],
    rows: Rows,
    number: int = 0,
) -> Step:
    with recorded_choices(engine.stages, context) as recorded:
        result = engine.accumulate(microbatches, next_token_loss)
    gradients = [(piece.piece, piece.tensor.clone()) for piece in engine.gradient_pieces()]
    return Step(result.loss, engine.grad_norm(), gradients, _of_step(number, by_microbatch(recorded, rows)))


def _of_step(number: int, choices: ChoicesOfRows) -> Choices:
    return {(number, *key): value for key, value in choices.items()}
