"""The layouts that are tried, and what one rank of them computes: a step in float64."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from vision_toys import (
    INTERNVL,
    INTERNVL_6B,
    LLAVA_ONEVISION,
    QWEN2_5_VL,
    QWEN3_VL,
    QWEN3_VL_MOE,
    Shown,
    batch_of,
    named_gradients,
    randomise,
)

from loong_core.checkpoint.pieces import Piece
from loong_core.data.batch import IGNORED_LABEL
from loong_core.device.cpu import CpuDevice
from loong_core.engine.base import Engine
from loong_core.engine.choice import EngineName, build_engine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.parts import ALL_BLOCKS, NOTHING, Parts
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.model import build_stages
from loong_llm.recipes.next_token import next_token_loss
from loong_vlm.data.batch import VisionBatch
from loong_vlm.parts import ModelParts
from loong_vlm.recipes.encoder_apart import join_engines
from loong_vlm.source import Component, VisionModelSource, open_vision_model

MODELS = {
    "qwen2.5": QWEN2_5_VL,
    "qwen3": QWEN3_VL,
    "qwen3 deep": {**QWEN3_VL, "text_config": {**QWEN3_VL["text_config"], "num_hidden_layers": 5}},
    "qwen3 moe": QWEN3_VL_MOE,
    "internvl": INTERNVL,
    "internvl 6b": INTERNVL_6B,
    "llava-onevision-1.5": LLAVA_ONEVISION,
}


@dataclass(frozen=True)
class Case:
    """One layout of one model.

    Attributes:
        ranks: how many.
        layout: their degrees.
        model: a key of `MODELS`.
        engine: which.
        quick: whether the package's tests try it, or the session `layouts-vlm` only.
        encoder: the encoder's degrees where it is apart from the language model.
        encoder_engine: which runs it.
        recompute: parts of the encoder.
        offload: whether features wait on the host.
    """

    ranks: int
    layout: Layout
    model: str = "qwen3"
    engine: EngineName = "megatron"
    quick: bool = False
    encoder: Layout | None = None
    encoder_engine: EngineName = "megatron"
    recompute: Parts = NOTHING
    offload: bool = False


ONE = Layout()
CASES = {
    "data 2": Case(2, Layout(), "qwen2.5"),
    "data 4": Case(4, Layout(), quick=True),
    "tensor 2": Case(2, Layout(tensor=2), quick=True),
    "tensor 2, internvl": Case(2, Layout(tensor=2), "internvl"),
    "tensor 4 of 2 key-value heads": Case(4, Layout(tensor=4), "qwen2.5"),
    "pipeline 2": Case(2, Layout(pipeline=2, pipeline_layers=(2, 1)), quick=True),
    "pipeline 3": Case(3, Layout(pipeline=3), "qwen2.5"),
    "context 2, ring": Case(2, Layout(context=2), quick=True),
    "context 2, ulysses": Case(2, Layout(context=2, ulysses=2), "qwen2.5"),
    "context 4, ring of 2 pairs": Case(4, Layout(context=4, ulysses=2), "internvl"),
    "tensor 2 x context 2": Case(4, Layout(tensor=2, context=2), quick=True),
    "tensor 2 x data 2": Case(4, Layout(tensor=2), "qwen2.5"),
    "tensor 2 x pipeline 2": Case(4, Layout(tensor=2, pipeline=2, pipeline_layers=(2, 1))),
    "tensor 2 x pipeline 2 x context 2": Case(8, Layout(tensor=2, pipeline=2, context=2, pipeline_layers=(2, 1))),
    "pipeline 2 x data 2": Case(4, Layout(pipeline=2, pipeline_layers=(2, 1)), "internvl"),
    "expert 2": Case(2, Layout(expert=2), "qwen3 moe"),
    "tensor 2 x expert 4, data 2": Case(4, Layout(tensor=2, expert=4), "qwen3 moe"),
    "fsdp, shard 2": Case(2, Layout(), engine="fsdp", quick=True),
    "fsdp, shard 4": Case(4, Layout(), "qwen2.5", "fsdp"),
    "fsdp, shard 2 x replicate 2": Case(4, Layout(shard=2, replicate=2), "internvl", "fsdp"),
    "fsdp, context 2 x data 2": Case(4, Layout(context=2), engine="fsdp"),
    "apart: pipeline 2, deep features over its stages": Case(
        2, Layout(pipeline=2, pipeline_layers=(1, 2)), encoder=ONE
    ),
    "apart: tensor 2 x pipeline 2": Case(4, Layout(tensor=2, pipeline=2), encoder=ONE, quick=True),
    "apart: tensor 2, encoder tensor 2": Case(2, Layout(tensor=2), encoder=Layout(tensor=2), quick=True),
    "apart: tensor 2 x pipeline 2, encoder tensor 2": Case(
        4, Layout(tensor=2, pipeline=2), "qwen2.5", encoder=Layout(tensor=2)
    ),
    "apart: context 2 (ring) of encoder tensor 2, internvl": Case(
        2, Layout(context=2), "internvl 6b", encoder=Layout(tensor=2)
    ),
    "apart: tensor 2 x context 2 (ulysses), encoder in two copies": Case(
        4, Layout(tensor=2, context=2, ulysses=2), encoder=Layout(replicate=2)
    ),
    "apart: pipeline 2 of 2 virtual stages, on the host": Case(
        2, Layout(pipeline=2, virtual_pipeline=2), "qwen3 deep", encoder=ONE, offload=True, quick=True
    ),
    "apart: expert 2 x tensor 2 x pipeline 2": Case(
        4, Layout(tensor=2, expert=2, pipeline=2), "qwen3 moe", encoder=ONE, recompute=ALL_BLOCKS
    ),
    "apart: fsdp, fed by megatron": Case(2, Layout(), engine="fsdp", encoder=ONE),
    "apart: tensor 2, fed by fsdp": Case(2, Layout(tensor=2), encoder=ONE, encoder_engine="fsdp", quick=True),
    "apart: fsdp with context 2 x data 2, fed by fsdp": Case(
        4, Layout(context=2), "qwen2.5", "fsdp", encoder=ONE, encoder_engine="fsdp", recompute=ALL_BLOCKS
    ),
    "apart: tensor 2 x pipeline 2 x data 2, encoder tensor 2": Case(
        8, Layout(tensor=2, pipeline=2), "internvl", encoder=Layout(tensor=2)
    ),
    "apart: tensor 2 x pipeline 2 x context 2": Case(8, Layout(tensor=2, pipeline=2, context=2), encoder=ONE),
    "apart: tensor 2 x data 2, encoder tensor 2, llava-onevision-1.5": Case(
        4, Layout(tensor=2), "llava-onevision-1.5", encoder=Layout(tensor=2)
    ),
    "apart: data 4": Case(4, Layout(), encoder=ONE),
}


@dataclass(frozen=True)
class Outcome:
    """A step's loss and gradient norm, and this rank's boxes of the gradients."""

    loss: float
    norm: float
    gradients: list[tuple[Piece, Tensor]]


def microbatches(parts: ModelParts) -> list[VisionBatch]:
    """Four: with images of several sizes, with a video, and two without any."""
    tiles = parts.tower_kind.name == "intern_vit"

    def shown(*grid: int, kind: str = "image") -> Shown:
        return Shown((grid[0], 4, 4)) if tiles else Shown(grid, kind)  # type: ignore[arg-type]

    samples = [
        [[3, shown(1, 8, 10), 1, shown(1, 2, 2), 4], [6], [shown(1, 6, 4), 2]],
        [[20], [9]],
        [[2, shown(3, 4, 6, kind="video"), 7]],
        [[17]],
    ]
    return [batch_of(each, parts, seed) for seed, each in enumerate(samples)]


def save_model(name: str, folder: Path) -> Path:
    """A folder of random float64 weights of one of the models, norms and biases drawn too."""
    (folder / "config.json").write_text(json.dumps(MODELS[name]))
    source, context = open_vision_model(folder), ParallelContext.single()
    (model,) = build_stages(source, context, dtype=torch.float64, initialise="random")
    randomise(model)
    tensors: dict[str, Tensor] = {}
    for parameter, placement in source.weight_map.placements(model, context):
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            tensors.setdefault(piece.name, torch.empty(piece.global_shape, dtype=torch.float64))[piece.slices] = part
    save_file(tensors, folder / "model.safetensors")
    return folder


def alone(folder: Path) -> tuple[float, dict[str, Tensor]]:
    """Loss, and gradients by name, of the step in plain PyTorch on one rank."""
    source, context = open_vision_model(folder), ParallelContext.single()
    (model,) = build_stages(source, context, dtype=torch.float64)
    whole = microbatches(source.parts)
    total = sum(model(batch).sum() for batch in whole)
    total.backward()
    tokens = sum(int((batch.labels != IGNORED_LABEL).sum()) for batch in whole)
    gradients = {name: value / tokens for name, value in named_gradients(model, source.weight_map, context).items()}
    return total.item() / tokens, gradients


def engine_of(case: Case, source: VisionModelSource) -> tuple[Engine, ParallelContext]:
    """The case's engine of float64 stages on this rank, and the language model's context."""
    context = ParallelContext.build(case.layout, "cpu")

    def built(component: Component, at: ParallelContext, engine: EngineName, recompute: Parts = NOTHING) -> Engine:
        own, settings = source.only(component), EngineSettings(precision="fp64")
        stages = build_stages(own, at, dtype=torch.float64)
        keep_less(stages, at, CpuDevice(), recompute=recompute)
        hidden = source.config.hidden_size
        return build_engine(engine, stages, own.weight_map, at, CpuDevice(), settings, hidden_size=hidden)

    if case.encoder is None:
        return built("whole", context, case.engine), context
    apart = ParallelContext.build(case.encoder, "cpu")
    encoder = built("encoder", apart, case.encoder_engine, case.recompute)
    language = built("language", context, case.engine)
    engine = join_engines(language, context, encoder, apart, source.parts, torch.float64, case.offload)
    return engine, context


def run_case(case: Case, folder: Path) -> Outcome:
    """This rank's part of a case."""
    source = open_vision_model(folder)
    engine, context = engine_of(case, source)
    mine = microbatches(source.parts)[context.data.rank :: context.data.size]
    result = engine.accumulate(mine, next_token_loss)
    gradients = [(piece.piece, piece.tensor.clone()) for piece in engine.gradient_pieces() if piece.tensor is not None]
    return Outcome(result.loss, engine.grad_norm(), gradients)
