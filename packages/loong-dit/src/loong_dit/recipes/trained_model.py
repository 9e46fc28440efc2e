"""The model of a run under its engine: all of it trained, chosen parts of it, or adapters; and what is left of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from loong_core.checkpoint.gathering import gathered
from loong_core.checkpoint.hf_export import export_hf
from loong_core.checkpoint.hf_format import DIFFUSERS
from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.engine.base import Engine
from loong_core.engine.choice import build_engine
from loong_core.nn.freezing import freeze
from loong_core.nn.lora import LoraSettings, apply_lora, merge_lora
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.train.run import Run
from loong_dit.lora_file import save_lora
from loong_dit.model import build_module, fill_module, module_weight_map, transformers_of
from loong_dit.model_source import ModelSource
from loong_dit.recipes.training_config import DiffusionTrainingConfig


@dataclass(frozen=True)
class TrainedModel:
    """A model that is ready to train.

    Attributes:
        source: what it was built from.
        engine: what runs it.
        lora: the adapters' settings, None where weights are trained.
    """

    source: ModelSource
    engine: Engine
    lora: LoraSettings | None


def lora_settings(config: DiffusionTrainingConfig, source: ModelSource) -> LoraSettings | None:
    """The `lora` section as the adapters take it."""
    section = config.lora
    if section is None:
        return None
    targets = (section.targets,) if isinstance(section.targets, str) else tuple(section.targets)
    return LoraSettings(
        rank=section.rank, alpha=section.alpha, dropout=section.dropout, targets=targets, seed=config.seed
    )


def choose_trained(
    config: DiffusionTrainingConfig, source: ModelSource, module: nn.Module, context: ParallelContext
) -> tuple[LoraSettings | None, WeightMap, str]:
    """Leave in training what the run file says.

    Returns:
        The adapters' settings, the weight map that the engine needs, and a line for people, empty for everything.

    Raises:
        UserError: a pattern matches nothing, or what cannot be chosen.
    """
    weight_map, lora, layers = module_weight_map(source), lora_settings(config, source), source.config.num_layers
    if lora is not None:
        extended = apply_lora([module], weight_map, layers, context, lora)
        own = sum(each.numel() for each in module.parameters() if each.requires_grad)
        return lora, extended, f"adapters of rank {lora.rank}: {own:,} parameters are trained"
    train = config.train
    if not train.freeze and not train.train_only:
        return None, weight_map, ""
    count = freeze([module], weight_map, layers, context, frozen=train.freeze, trained=train.train_only)
    return None, weight_map, str(count)


def build_trained_model(run: Run, config: DiffusionTrainingConfig, source: ModelSource) -> TrainedModel:
    """Build the model and put it under the run's engine. Collective."""
    settings = run.engine_settings
    module = build_module(source, run.context)
    fill_module(module, source, run.context, initialise=config.model.initialise, seed=config.seed)
    lora, weight_map, told = choose_trained(config, source, module, run.context)
    kept = keep_less(
        transformers_of(module),
        run.context,
        run.device,
        recompute=config.recompute.parts,
        offload=config.offload.parts,
    )
    for line in filter(None, (told, kept)):
        run.say(line)
    engine = build_engine(config.engine, [module], weight_map, run.context, run.device, settings)
    return TrainedModel(source, engine, lora)


def export(run: Run, config: DiffusionTrainingConfig, model: TrainedModel) -> None:
    """Write what was trained into `hf/`: a transformer's folder for each that was, or adapters. Collective.

    Of averaged weights where averages are kept; the engine has no further use.
    """
    folder, parts = run.folder.hf, list(model.source.parts)
    if model.lora is not None and config.lora is not None and not config.lora.merge:
        written = save_lora(
            folder, model.engine.weight_pieces(), model.source, model.lora, config.lora.format, run.context
        )
        run.say(f"adapters written to {', '.join(map(str, written))}")
        return
    pieces = list(model.engine.weight_pieces() if model.lora is None else _merged(model, run.context))
    for part in parts:
        chosen = pieces if len(parts) == 1 else _of_part(pieces, part)
        export_hf(folder / part, model.source.hf_config, chosen, run.context, run.dtype, replace=True, kind=DIFFUSERS)
    run.say(f"model written to {', '.join(str(folder / part) for part in parts)}")


def _of_part(pieces: Sequence[StatePiece], part: str) -> list[StatePiece]:
    """The pieces of one of two transformers, under the names that its own folder has."""
    prefix = f"{part}."
    return [
        StatePiece(
            each.kind,
            Piece(each.piece.name.removeprefix(prefix), each.piece.global_shape, each.piece.offsets, each.piece.sizes),
            each.tensor,
        )
        for each in pieces
        if each.piece.name.startswith(prefix)
    ]


def _merged(model: TrainedModel, context: ParallelContext) -> Iterator[StatePiece]:
    """The weights with the adapters in them, on rank 0: adapters are small, and gathered there."""
    adapted = gathered(model.engine.weight_pieces(), context, first_only=True)
    if context.rank > 0:
        return
    assert model.lora is not None
    alone = ParallelContext.single()
    module = build_module(model.source, alone)
    weight_map = apply_lora(
        [module], module_weight_map(model.source), model.source.config.num_layers, alone, model.lora
    )
    with torch.no_grad():
        for parameter, placement in weight_map.placements(module, alone):
            parameter.copy_(placement.to_local([adapted[piece.name].float() for piece in placement.pieces]))
    merge_lora([module])
    plain = module_weight_map(model.source)
    for parameter, placement in plain.placements(module, alone):
        for piece, values in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            yield StatePiece("weight", piece, values)
