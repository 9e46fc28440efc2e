"""This project: the parts and engines as `loong-vlm train` puts them together, on any layout of ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from loong_core.device import select
from loong_core.device.protocol import TimingEvent
from loong_core.engine.base import Engine, LossTerms
from loong_core.engine.choice import build_engine
from loong_core.engine.components.engine import ComponentsEngine
from loong_core.engine.settings import EngineSettings
from loong_core.nn.parts import ALL_BLOCKS, NOTHING
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.parallel.ranks import initialise_from_env
from loong_llm.model import build_stages
from loong_llm.recipes.next_token import next_token_loss
from loong_vlm.recipes.encoder_apart import join_engines
from loong_vlm.source import Component, VisionModelSource, open_vision_model
from tools.bench.vlm_stacks.work import MODELS, Work

NOTE = "bf16 with fp32 main weights, gradients and moments"
PLACES: dict[str, tuple[Layout, Layout | None]] = {
    "one": (Layout(), None),
    "tensor 2": (Layout(tensor=2), None),
    "tensor 2, encoder 2": (Layout(tensor=2), Layout(tensor=2)),
    "tensor 2, encoder 1": (Layout(tensor=2), Layout()),
    "pipeline 2": (Layout(pipeline=2), None),
    "pipeline 2, encoder apart": (Layout(pipeline=2), Layout()),
}
"""Layouts of the language model, and of an encoder that is apart from it."""


@dataclass(frozen=True)
class Mark:
    """Work of this rank between two moments of its device."""

    what: str
    number: int
    start: TimingEvent
    stop: TimingEvent


class Steps:
    """Takes steps, and tells of one when the rank did what.

    Args:
        work: what a step is.
        place: a key of `PLACES`.
        weights: a folder to load, None to draw.
        recompute: whether blocks keep their inputs only.
    """

    def __init__(self, work: Work, place: str, weights: Path | None, recompute: bool) -> None:
        self.device = select(work.device).device
        _, self.torch_device = initialise_from_env(self.device)
        self.work = work
        layout, encoder = PLACES[place]
        source = open_vision_model(weights or MODELS[work.model].named, None if weights else _changed(work))
        self.marks: list[Mark] | None = None
        self._encoding = self._now()
        context = ParallelContext.build(layout, self.torch_device)
        self.engine: Engine
        if encoder is None:
            self.engine = self._engine(source, "whole", context, recompute)
        else:
            apart = ParallelContext.build(encoder, self.torch_device)
            language = self._engine(source, "language", context, recompute)
            own = self._engine(source, "encoder", apart, recompute)
            dtype = self._settings.dtype
            self.engine = join_engines(language, context, own, apart, source.parts, dtype)
            self._watch(self.engine)

    @property
    def _settings(self) -> EngineSettings:
        return EngineSettings(precision="fp32" if self.work.device == "cpu" else "bf16", weight_decay=0.01)

    def _engine(
        self, source: VisionModelSource, component: Component, context: ParallelContext, recompute: bool
    ) -> Engine:
        own, settings = source.only(component), self._settings
        stages = [stage.to(self.torch_device) for stage in build_stages(own, context, dtype=settings.dtype)]
        keep_less(stages, context, self.device, recompute=ALL_BLOCKS if recompute else NOTHING)
        return build_engine(
            "megatron", stages, own.weight_map, context, self.device, settings, hidden_size=own.config.hidden_size
        )

    def __call__(self, number: int) -> float:
        """One step on the work's batches, the loss."""
        loss = self.engine.accumulate(self.work.batches(number), self._forward)
        self.engine.grad_norm()
        self.engine.apply(1e-4)
        return loss.loss

    def watched(self, number: int) -> list[Mark]:
        """What this rank does in a step."""
        self.marks, self._forwards = [], 0
        self(number)
        self.device.synchronize()
        found, self.marks = self.marks, None
        return found

    def _forward(self, model: nn.Module, batch: Any, hidden: Tensor | None) -> LossTerms | Tensor:
        if self.marks is None:
            return next_token_loss(model, batch, hidden)
        number, self._forwards = self._forwards, self._forwards + 1
        start = self._now()
        result = next_token_loss(model, batch, hidden)
        self.marks.append(Mark("forward", number, start, self._now()))
        output = result.loss_sum if isinstance(result, LossTerms) else result
        output.register_hook(lambda gradient: self._begins("backward", number))
        return result

    def _watch(self, engine: ComponentsEngine) -> None:
        """Mark each encoding of a round, and its backward."""
        (feeder,) = engine.feeders
        (stage,) = feeder.engine.stages
        rounds = 0

        def encoded(module: nn.Module, inputs: Any, rows: Tensor) -> None:
            nonlocal rounds
            if self.marks is None:
                return
            rounds = rounds + 1 if self.marks and self.marks[-1].what == "encode" else 0
            number = rounds
            self.marks.append(Mark("encode", number, self._encoding, self._now()))
            if rows.requires_grad:
                rows.register_hook(lambda gradient: self._begins("encoder backward", number))

        def begins(module: nn.Module, inputs: Any) -> None:
            self._encoding = self._now()

        stage.register_forward_pre_hook(begins)
        stage.register_forward_hook(encoded)

    def _begins(self, what: str, number: int) -> None:
        """Backward has a beginning that a hook sees; it lasts until what comes next begins."""
        if self.marks is not None:
            moment = self._now()
            self.marks.append(Mark(what, number, moment, moment))

    def _now(self) -> TimingEvent:
        event = self.device.event()
        event.record()
        return event


def _changed(work: Work) -> dict[str, Any]:
    return MODELS[work.model].changes


def build(work: Work, weights: Path | None, options: Any) -> Callable[[int], float]:
    """A step on one rank, or on this one of several."""
    return Steps(work, options.place, weights, options.recompute)
