"""What a data rank computes with and without balancing: a step's loss, and the gradient of every parameter."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from picture_toys import PROCESSOR, vision_tokenizer

from loong_core.parallel.context import ParallelContext
from loong_llm.conversations.encoding import RenderSettings
from loong_llm.model import build_stages
from loong_vlm.balance.balancer import Balancer
from loong_vlm.balance.cost import CostModel
from loong_vlm.data.arrangement import arrange
from loong_vlm.data.corpus import VisionSettings, VisionSource, open_vision_corpus
from loong_vlm.data.encoding import VisionEncoder
from loong_vlm.data.placeholders import FeatureRuns
from loong_vlm.source import open_vision_model

COSTS = CostModel(token_pairs=1e-3, tokens=1.0, samples=0.0, patch_pairs=1e-3, patches=1.0)


def step(model: Path, data: Path, cache: Path, balanced: bool, steps: int = 2) -> dict:
    """This rank's part of a few steps: mean loss and gradients over all ranks, its images, and how even steps were."""
    source = open_vision_model(model)
    parts = source.parts
    runs = FeatureRuns(parts.projector, parts.meeting.positions)
    encoder = VisionEncoder(vision_tokenizer(), RenderSettings("chatml"), parts.meeting.layout, PROCESSOR, runs)
    settings = VisionSettings((VisionSource(str(data)),), cache, sequence_length=256, threads=1)
    balancer = Balancer(COSTS, fit_steps=1, skip_steps=0) if balanced else None
    corpus = open_vision_corpus(settings, encoder, partial(arrange, parts=parts), balancer=balancer)
    rank, size = dist.get_rank(), dist.get_world_size()
    stream = corpus.stream(global_batch_size=8, micro_batch_size=1, data_rank=rank, data_size=size)

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
