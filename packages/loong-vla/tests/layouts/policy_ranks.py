"""What one rank computes of a shrunken policy's step in float64."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from vla_toys import pi_batch, pi_policy

from loong_core.checkpoint.pieces import Piece
from loong_core.device.cpu import CpuDevice
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_vla.families.pi.batch import PiBatch
from loong_vla.families.pi.loss import pi_loss
from loong_vla.families.pi.weights import pi_weight_map

SAMPLES = 4

Boxes = list[tuple[Piece, Tensor]]

BANKS = (".W", ".b")
"""Endings of what GR00T's files call the weights of all embodiments."""

LAYOUTS = {
    "fsdp2": (2, {"shard": 2}, "everything"),
    "ddp": (2, {"replicate": 2}, "everything"),
    "zero1": (2, {"shard": 2}, "optimizer"),
    "hsdp": (4, {"replicate": 2, "shard": 2}, "everything"),
}
"""Ranks, degrees, and what is divided."""


@dataclass(frozen=True)
class Outcome:
    """Loss, gradient norm, and this rank's boxes of the gradients."""

    loss: float
    norm: float
    gradients: Boxes


def global_batch(kind: str) -> PiBatch:
    """Four samples, whose prompts and horizons have unlike lengths."""
    batch = pi_batch(kind)
    four = _rows(batch, torch.tensor([0, 1, 2, 0]))
    trained = four.trained.clone()
    trained[1, 3:] = False
    return replace(four, trained=trained, noise=four.noise.roll(1, 0), time=four.time * 0.9)


def _rows(batch: PiBatch, rows: Tensor) -> PiBatch:
    taken: dict[str, Any] = {
        each.name: value[rows] for each in fields(batch) if isinstance(value := getattr(batch, each.name), Tensor)
    }
    return replace(batch, **taken)


def one_step(kind: str, degrees: dict[str, int], sharding: str = "everything", precision: str = "fp64") -> Outcome:
    """This rank's share of a step over the global batch."""
    torch.set_num_threads(1)
    context = ParallelContext.build(Layout(**degrees), "cpu")
    policy = pi_policy(kind)
    settings = EngineSettings(precision=precision, sharding=sharding)  # type: ignore[arg-type]
    engine = FsdpEngine([policy], pi_weight_map(policy.config), context, CpuDevice(), settings)
    own = range(context.data.rank, SAMPLES, context.data.size)
    microbatches = [_rows(global_batch(kind), torch.tensor([number])) for number in own]
    loss = engine.accumulate(microbatches, pi_loss)
    boxes = [(each.piece, each.tensor.clone()) for each in engine.gradient_pieces() if each.tensor is not None]
    return Outcome(loss.loss, engine.grad_norm(), boxes)


def assembled(outcomes: list[Outcome]) -> dict[str, torch.Tensor]:
    """Whole gradients; each element is held by just one rank; in banks, by none where embodiments are not held."""
    whole: dict[str, torch.Tensor] = {}
    held: dict[str, torch.Tensor] = {}
    boxes: Boxes = [box for outcome in outcomes for box in outcome.gradients]
    for piece, values in boxes:
        whole.setdefault(piece.name, torch.zeros(piece.global_shape, dtype=torch.float64))[piece.slices] = values
        held.setdefault(piece.name, torch.zeros(piece.global_shape))[piece.slices] += 1
    for name, count in held.items():
        assert (count == 1).all() or (name.endswith(BANKS) and (count <= 1).all()), name
    return whole
