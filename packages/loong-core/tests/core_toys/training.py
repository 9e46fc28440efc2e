"""Running the toy model under an engine on the ranks of a pool."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from core_toys.model import build_stages, forward_step, step_batches, weight_map
from loong_core.checkpoint.pieces import StatePiece
from loong_core.device.cpu import CpuDevice
from loong_core.engine.base import Engine
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.megatron.engine import MegatronEngine
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout


def toy_engine(
    layout: Layout,
    settings: EngineSettings,
    *,
    tied: bool = False,
    hidden_size: int | None = None,
    kind: str = "megatron",
) -> tuple[Any, ParallelContext]:
    """The toy model under an engine on this rank."""
    context = ParallelContext.build(layout, "cpu")
    stages = build_stages(context, settings.dtype, tied=tied)
    names, device = weight_map(tied=tied), CpuDevice()
    if kind == "fsdp":
        return FsdpEngine(stages, names, context, device, settings), context
    return MegatronEngine(stages, names, context, device, settings, hidden_size=hidden_size), context


def train(
    engine: Engine, context: ParallelContext, steps: Iterable[int], *, global_batch: int = 4, lr: float = 0.05
) -> list[tuple[float, float]]:
    """Take steps; (loss, grad_norm) of each."""
    curve = []
    for step in steps:
        loss = engine.accumulate(step_batches(step, global_batch, context), forward_step)
        curve.append((loss.loss, engine.grad_norm()))
        engine.apply(lr)
    return curve


def assemble(pieces: Iterable[StatePiece]) -> dict[str, Tensor]:
    """Whole tensors by key, from every rank's pieces; an element that nobody yields stays NaN."""
    mine = [(piece.key, piece.piece, piece.tensor.clone()) for piece in pieces if piece.tensor is not None]
    everyone: list = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    whole: dict[str, Tensor] = {}
    for key, piece, values in (entry for rank in everyone for entry in rank):
        target = whole.setdefault(key, torch.full(piece.global_shape, torch.nan, dtype=values.dtype))
        target[piece.slices] = values
    return whole


def trained(
    layout: Layout,
    settings: EngineSettings,
    steps: int,
    tied: bool = False,
    global_batch: int = 4,
    kind: str = "megatron",
) -> tuple[list[tuple[float, float]], dict[str, Tensor]]:
    """Curve and whole state after some steps."""
    engine, context = toy_engine(layout, settings, tied=tied, kind=kind)
    curve = train(engine, context, range(steps), global_batch=global_batch)
    return curve, assemble(engine.state_pieces())
