"""The model of a run under its engine: all of it trained, chosen parts of it, or adapters; and what is left of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from loong_core.checkpoint.hf_export import export_hf
from loong_core.checkpoint.hf_writer import PROCESSOR_FILES, TOKENIZER_FILES
from loong_core.checkpoint.pieces import StatePiece
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.config.sections import Fp8Section
from loong_core.engine.base import Engine
from loong_core.engine.choice import EngineName, build_engine, weights_dtype
from loong_core.engine.settings import EngineSettings
from loong_core.nn.decoder import Decoder
from loong_core.nn.four_bit_base import round_base
from loong_core.nn.freezing import freeze
from loong_core.nn.lora import LoraSettings, apply_lora, merge_lora
from loong_core.nn.parts import NOTHING, Parts
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.precision.run import apply_section
from loong_core.precision.step import StepPrecision
from loong_core.train.run import Run
from loong_llm.adapter import save_adapter
from loong_llm.model import ModelSource, build_stages
from loong_llm.recipes.lora_section import lora_settings
from loong_llm.recipes.training_config import TrainingConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True)
class Component:
    """A model, or a part of one that has a layout and an engine of its own.

    Attributes:
        source: what its stages were built from.
        context: where.
        engine: what runs it.
        lora: the adapters' settings, None where weights are trained.
    """

    source: ModelSource
    context: ParallelContext
    engine: Engine
    lora: LoraSettings | None


@dataclass(frozen=True)
class ComponentChoices:
    """How a component is run, where it may differ from another's.

    Attributes:
        engine: which.
        settings: the engine's.
        recompute, offload: parts of it, as in the run file.
        fp8: its section.
        name: put before the run file's keys in errors and news, as `encoder.`.
    """

    engine: EngineName
    settings: EngineSettings
    recompute: Parts = NOTHING
    offload: Parts = NOTHING
    fp8: Fp8Section | None = None
    name: str = ""


@dataclass(frozen=True)
class TrainedModel:
    """A model that is ready to train.

    Attributes:
        source: what it was built from.
        engine: what runs it.
        lora: the adapters' settings, None where weights are trained.
        components: the stages of each component that has a layout of its own, with what it is and its context; where
            there is one, the model itself.
    """

    source: ModelSource
    engine: Engine
    lora: LoraSettings | None
    components: Sequence[Component]

    def flops_per_token(self, sequence_length: int) -> float:
        """Of forward and backward; with adapters no gradient of the other weights is computed, a third of their work.

        The adapters' own part is not counted.
        """
        config = self.source.config
        spared = 2.0 * config.matmul_parameters() if self.lora is not None else 0.0
        return config.flops_per_token(sequence_length) - spared


def choose_trained(
    config: TrainingConfig, model: ModelSource, stages: Sequence[Decoder], context: ParallelContext
) -> tuple[LoraSettings | None, WeightMap, str]:
    """Leave in training what the run file says: everything, parts by pattern, or adapters that are put on.

    Returns:
        The adapters' settings, the weight map that the engine needs, and a line for people, empty for everything.

    Raises:
        UserError: a pattern matches nothing or what cannot be chosen; no stage is needed to find out.
    """
    num_layers, lora = model.config.num_layers, lora_settings(config)
    if lora is not None:
        weight_map = apply_lora(stages, model.weight_map, num_layers, context, lora)
        own = sum(each.numel() for stage in stages for each in stage.parameters() if each.requires_grad)
        return lora, weight_map, f"adapters of rank {lora.rank}: {own:,} parameters are trained"
    train = config.train
    if not train.freeze and not train.train_only:
        return None, model.weight_map, ""
    count = freeze(stages, model.weight_map, num_layers, context, frozen=train.freeze, trained=train.train_only)
    return None, model.weight_map, str(count)


def build_trained_model(
    run: Run, config: TrainingConfig, model: ModelSource, settings: EngineSettings | None = None
) -> TrainedModel:
    """Build this rank's part of the model and put it under the run's engine. Collective.

    Args:
        run: whose ranks and device.
        config: its configuration.
        model: what to build.
        settings: the engine's, where they are not just the run's.
    """
    own = build_component(run, config, model, run.context, run_choices(config, settings or run.engine_settings))
    return TrainedModel(model, own.engine, own.lora, [own])


def run_choices(config: TrainingConfig, settings: EngineSettings) -> ComponentChoices:
    """As the run file says of the whole model."""
    return ComponentChoices(config.engine, settings, config.recompute.parts, config.offload.parts, config.fp8)


def build_component(
    run: Run, config: TrainingConfig, model: ModelSource, context: ParallelContext, choices: ComponentChoices
) -> Component:
    """Build this rank's part of a component and put it under its engine. Collective.

    Args:
        run: whose ranks and device.
        config: its configuration, of what is trained.
        model: what to build.
        context: where.
        choices: how it is run.
    """
    dtype = weights_dtype(choices.engine, choices.settings)
    four_bit = config.lora is not None and config.lora.base == "nf4"
    # What is to be rounded is loaded on the host: the device never holds the whole of it.
    place = replace(context, device=torch.device("cpu")) if four_bit else context
    stages = build_stages(model, place, dtype=dtype, initialise=config.model.initialise, seed=config.seed)
    if four_bit:
        run.say(str(round_base(stages, context.device)))
    stages = [stage.to(context.device) for stage in stages]
    lora, weight_map, told = choose_trained(config, model, stages, context)
    if told:
        told = f"{choices.name.removesuffix('.')}: {told}" if choices.name else told
        run.say(told if context.layout.model == 1 else f"{told} on this rank")
    if kept := keep_less(
        stages, context, run.device, recompute=choices.recompute, offload=choices.offload, component=choices.name
    ):
        run.say(kept)
    applied = None
    if choices.fp8 is not None:
        applied = apply_section(choices.fp8, stages, model.weight_map, model.config.num_layers, context, run.device)
        run.say(str(applied))
    engine = build_engine(
        choices.engine,
        stages,
        weight_map,
        context,
        run.device,
        choices.settings,
        hidden_size=model.config.hidden_size,
    )
    if choices.fp8 is not None and applied is not None:
        engine.precision = StepPrecision(
            applied.layers,
            hold=choices.engine == "megatron",  # the other gathers weights for each use
            error_bound=choices.fp8.error_bound,
            check_every=choices.fp8.check_every,
            adaptive=applied.adaptive,
            say=run.say,
        )
    return Component(model, context, engine, lora)


def export(
    run: Run,
    config: TrainingConfig,
    model: TrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    end_of_turn_ids: Sequence[int] = (),
    processor: Path | None = None,
    folder: Path | None = None,
) -> None:
    """Write what was trained: the model in the run's precision, or its adapters. Collective.

    Where adapters are merged into the model the engine has no further use.

    Args:
        run: whose folder and ranks.
        config: its configuration.
        model: what was trained.
        tokenizer: goes with it.
        end_of_turn_ids: ids at which generation is to stop, in place of the model's own.
        processor: folder whose files say how images are read, if the model reads any.
        folder: where to; by default `hf/` or `adapter/` of the run folder.
    """
    source = model.source
    hf_config: dict[str, Any] = dict(source.hf_config)
    if config.tokenizer is not None:
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            hf_config[key] = getattr(tokenizer, key)
    if end_of_turn_ids:
        hf_config["eos_token_id"] = _one_or_list(end_of_turn_ids)
    with TemporaryDirectory() as temporary:
        companions = Path(temporary)
        changed = config.tokenizer is not None or bool(end_of_turn_ids)
        _write_companions(companions, source.tokenizer_dir, tokenizer if changed else None, end_of_turn_ids)
        for file in [file for name in PROCESSOR_FILES for file in (processor.glob(name) if processor else ())]:
            shutil.copyfile(file, companions / file.name)
        if model.lora is not None and config.lora is not None and not config.lora.merge:
            save_adapter(
                folder or run.folder.adapter,
                model.engine.weight_pieces(),
                model.lora,
                run.context,
                weight_map=source.weight_map,
                num_layers=source.config.num_layers,
                base_model=str(source.weights.path.resolve()) if source.weights is not None else source.name,
                companions=companions,
                replace=True,
            )
            if folder is None:
                run.say(f"adapter written to {run.folder.adapter}")
            return
        pieces = model.engine.weight_pieces() if model.lora is None else _merged_weights(model)
        where = folder or run.folder.hf
        export_hf(where, hf_config, pieces, run.context, run.dtype, companions=companions, replace=True)
    if folder is None:
        run.say(f"model written to {run.folder.hf}")


def _merged_weights(model: TrainedModel) -> Iterator[StatePiece]:
    """This rank's weights once the adapters are in them, without the adapters."""
    merge_lora(model.engine.stages)
    for component in model.components:
        for stage in component.engine.stages:
            for parameter, placement in component.source.weight_map.placements(stage, component.context):
                if placement.writes:
                    parts = placement.from_local(parameter.detach())
                    for piece, part in zip(placement.pieces, parts, strict=True):
                        yield StatePiece("weight", piece, part)


def _write_companions(
    folder: Path, origin: Path | None, tokenizer: PreTrainedTokenizerBase | None, end_of_turn_ids: Sequence[int]
) -> None:
    """What goes with the weights: the origin's files, with `tokenizer` in place of its own if there is one."""
    patterns = (GENERATION_FILE, "*.py", *(TOKENIZER_FILES if tokenizer is None else ()))
    for file in [file for pattern in patterns for file in (origin.glob(pattern) if origin is not None else ())]:
        shutil.copyfile(file, folder / file.name)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    generation = folder / GENERATION_FILE
    if end_of_turn_ids and generation.is_file():
        values = json.loads(generation.read_text(encoding="utf-8"))
        values["eos_token_id"] = _one_or_list(end_of_turn_ids)
        generation.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def _one_or_list(ids: Sequence[int]) -> int | list[int]:
    return ids[0] if len(ids) == 1 else list(ids)
