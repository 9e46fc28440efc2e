"""Which engine a run file's `engine:` means, and which layouts it takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.device.protocol import Device
from loong_core.engine.base import Engine
from loong_core.engine.settings import EngineSettings
from loong_core.errors import Fault
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout

EngineName = Literal["megatron", "fsdp"]

_FSDP_LEAVES_AT_1 = ("tensor", "pipeline", "virtual_pipeline", "expert", "expert_tensor")


def engine_faults(engine: EngineName, layout: Layout) -> list[Fault]:
    """What an engine cannot do of a layout."""
    return [
        Fault(f"layout.{name}", f"is {degree}, and engine fsdp divides a model among data ranks only", "use megatron")
        for name in (_FSDP_LEAVES_AT_1 if engine == "fsdp" else ())
        if (degree := getattr(layout, name)) > 1
    ]


def weights_dtype(engine: EngineName, settings: EngineSettings) -> torch.dtype:
    """In what a model is built for an engine: fsdp keeps weights in float32 and casts them as it gathers them."""
    return torch.float32 if engine == "fsdp" else settings.dtype


def build_engine(
    engine: EngineName,
    stages: Sequence[nn.Module],
    weight_map: WeightMap,
    context: ParallelContext,
    device: Device,
    settings: EngineSettings,
    *,
    hidden_size: int | None = None,
) -> Engine:
    """Put stages, built in `weights_dtype` on the context's device, under the engine; arguments are the engines'."""
    if engine == "fsdp":
        from loong_core.engine.fsdp.engine import FsdpEngine

        return FsdpEngine(stages, weight_map, context, device, settings)
    from loong_core.engine.megatron.engine import MegatronEngine

    return MegatronEngine(stages, weight_map, context, device, settings, hidden_size=hidden_size)
