"""What a data rank computes with and without balancing: a step's loss, and the gradient of every parameter."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from picture_toys import PROCESSOR, vision_tokenizer

from loong_core.device.cpu import CpuDevice
from loong_core.engine.base import Engine
from loong_core.engine.choice import build_engine
from loong_core.engine.components.feeding import component_contexts
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_llm.conversations.encoding import RenderSettings
from loong_llm.model import build_stages
from loong_llm.recipes.next_token import next_token_loss
from loong_vlm.balance.balancer import Balancer
from loong_vlm.balance.cost import CostModel
from loong_vlm.data.arrangement import arrange
from loong_vlm.data.corpus import VisionSettings, VisionSource, open_vision_corpus
from loong_vlm.data.encoding import VisionEncoder
from loong_vlm.data.placeholders import FeatureRuns
from loong_vlm.recipes.encoder_apart import join_engines
from loong_vlm.source import Component, VisionModelSource, open_vision_model

COSTS = CostModel(token_pairs=1e-3, tokens=1.0, samples=0.0, patch_pairs=1e-3, patches=1.0)


def apart_step(model: Path, data: Path, cache: Path, balanced: bool, steps: int = 2) -> dict:
    """As `step` on two data ranks of two tensor ranks, the encoder apart: losses and this rank's boxes of gradients."""
    source = open_vision_model(model)
    settings = EngineSettings(precision="fp64")
    contexts = component_contexts({"language": Layout(tensor=2), "encoder": Layout()}, "cpu")

    def engine_of(component: Component) -> Engine:
        own, context = source.only(component), contexts[component]
        stages = build_stages(own, context, dtype=torch.float64)
        return build_engine("megatron", stages, own.weight_map, context, CpuDevice(), settings)

    language, encoder = contexts["language"], contexts["encoder"]
    engine = join_engines(engine_of("language"), language, engine_of("encoder"), encoder, source.parts, torch.float64)
    stream = open_stream(source, data, cache, balanced, language.data.rank, language.data.size)
    found = {"losses": [], "gradients": [], "images": 0}
    for _ in range(steps):
        batches = stream.next_step()
        found["images"] += sum(batch.pictures.count for batch in batches)
        found["losses"].append(engine.accumulate(batches, next_token_loss).loss)
        own = [(piece.piece, piece.tensor.clone()) for piece in engine.gradient_pieces() if piece.tensor is not None]
        found["gradients"].append(own)
        stream.figures({"step_seconds": 1.0, "data_seconds": 0.1})
    return found


def open_stream(source: VisionModelSource, data: Path, cache: Path, balanced: bool, rank: int, size: int) -> Any:
    """The corpus as one data rank reads it."""
    parts = source.parts
    runs = FeatureRuns(parts.projector, parts.meeting.positions)
    encoder = VisionEncoder(vision_tokenizer(), RenderSettings("chatml"), parts.meeting.layout, PROCESSOR, runs)
    settings = VisionSettings((VisionSource(str(data)),), cache, sequence_length=256, threads=1)
    balancer = Balancer(COSTS, fit_steps=1, skip_steps=0) if balanced else None
    corpus = open_vision_corpus(settings, encoder, partial(arrange, parts=parts), balancer=balancer)
    return corpus.stream(global_batch_size=8, micro_batch_size=1, data_rank=rank, data_size=size)


def step(model: Path, data: Path, cache: Path, balanced: bool, steps: int = 2) -> dict:
    """This rank's part of a few steps: mean loss and gradients over all ranks, its images, and how even steps were."""
    source = open_vision_model(model)
    stream = open_stream(source, data, cache, balanced, dist.get_rank(), dist.get_world_size())

    (module,) = build_stages(source, ParallelContext.single(), dtype=torch.float64)
    total = torch.zeros(2, dtype=torch.float64)
    images, figures = 0, []
    for _ in range(steps):
        for batch in stream.next_step():
            loss = module(batch).sum()
            loss.backward()
            total += torch.stack([loss.detach(), (batch.labels >= 0).sum().double()])
            images += batch.pictures.count
        figures.append(stream.figures({"step_seconds": 1.0, "data_seconds": 0.1}))
    dist.all_reduce(total)
    gradients = {}
    for name, parameter in module.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        dist.all_reduce(gradient)
        gradients[name] = gradient / total[1]
    return {"loss": total[0] / total[1], "gradients": gradients, "images": images, "figures": figures}
