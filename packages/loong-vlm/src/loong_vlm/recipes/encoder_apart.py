"""A run's model whose tower and projector have a layout of their own: two components under one engine."""

from __future__ import annotations

from dataclasses import replace

import torch

from loong_core.engine.base import Engine, LedEngine
from loong_core.engine.components.engine import ComponentsEngine, Feeder
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.train.run import Run
from loong_llm.recipes.trained_model import (
    ComponentChoices,
    TrainedModel,
    build_component,
    build_trained_model,
    run_choices,
)
from loong_llm.recipes.training_config import TrainingConfig
from loong_vlm.feeding import ImageFeeding
from loong_vlm.parts import ModelParts
from loong_vlm.recipes.training_config import VisionTrainingConfig, encoder_layout
from loong_vlm.source import VisionModelSource


def build_vision_model(
    run: Run,
    config: VisionTrainingConfig,
    chosen: TrainingConfig,
    source: VisionModelSource,
    settings: EngineSettings,
) -> TrainedModel:
    """Build this rank's part of the model and put it under its engine. Collective.

    Args:
        run: whose ranks and device.
        config: its configuration.
        chosen: the same, with the parts that are trained written out (`with_chosen_parts`).
        source: the model.
        settings: the language model's engine's.
    """
    if config.encoder is None:
        return build_trained_model(run, chosen, source, settings)
    context = ParallelContext.build(encoder_layout(config.encoder), run.context.device)
    language = build_component(run, chosen, source.only("language"), run.context, run_choices(chosen, settings))
    encoder = build_component(run, chosen, source.only("encoder"), context, encoder_choices(config, settings))
    engine = join_engines(
        language.engine, run.context, encoder.engine, context, source.parts, run.dtype, config.encoder.offload_features
    )
    return TrainedModel(source, engine, language.lora, [language, encoder])


def join_engines(
    language: Engine,
    context: ParallelContext,
    encoder: Engine,
    encoder_context: ParallelContext,
    parts: ModelParts,
    dtype: torch.dtype,
    offload: bool = False,
) -> ComponentsEngine:
    """One engine of both.

    Args:
        language: the language model's engine, of stages without tower and projector.
        context: its context.
        encoder: that of a `VisionEncoder`.
        encoder_context: its.
        parts: the model.
        dtype: in which features travel.
        offload: whether they wait on the host.
    """
    assert isinstance(encoder, LedEngine)
    feeding = ImageFeeding(parts, context)
    width = parts.projector.hidden_size
    return ComponentsEngine(
        language, context, [Feeder("encoder", encoder, encoder_context, feeding, width, dtype, offload)]
    )


def encoder_choices(config: VisionTrainingConfig, settings: EngineSettings) -> ComponentChoices:
    """How the encoder is run: its products are not made in 8 bits, and its gradients are reduced at the end."""
    section = config.encoder
    assert section is not None
    precision = section.precision or config.precision
    return ComponentChoices(
        section.engine or config.engine,
        replace(settings, precision=precision, overlap_grad_reduce=False, overlap_param_gather=False),
        section.recompute.parts,
        section.offload.parts,
        name="encoder.",
    )
