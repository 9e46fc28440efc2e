"""Everything that can be known to be wrong with a run before it starts, without touching an accelerator."""

from __future__ import annotations

from loong_core.config.loading import Loaded
from loong_core.device import Device
from loong_core.errors import ConfigError, Fault
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.wording import counted
from loong_llm.check import host_memory_faults, run_facts
from loong_llm.recipes.trained_model import choose_trained
from loong_llm.run_checks import Findings, OwnChecks, check_with, config_of, unless_faulty
from loong_llm.stage_checks import kept_part_faults, router_record_faults, told_faults
from loong_llm.tokenizer import load_tokenizer, tokenizer_faults
from loong_vlm.data.corpus import vision_faults
from loong_vlm.encoder_checks import encoder_faults
from loong_vlm.recipes.fine_tuning import open_run_model, vision_encoder, vision_sources
from loong_vlm.recipes.trained_parts import with_chosen_parts
from loong_vlm.recipes.training_config import PART_NAMES, VisionTrainingConfig, encoder_layout
from loong_vlm.source import VisionModelSource


def checked(loaded: Loaded[VisionTrainingConfig], world_size: int) -> VisionTrainingConfig:
    """The configuration, if nothing is wrong with it.

    Raises:
        ConfigError: with every fault found.
    """
    return config_of(loaded, check_run(loaded, world_size))


def check_run(loaded: Loaded[VisionTrainingConfig], world_size: int) -> Findings:
    """Check a run file for `world_size` ranks; nothing is written."""
    return check_with(_CHECKS, loaded, world_size)


def _open_model(config: VisionTrainingConfig) -> VisionModelSource:
    if config.model.source or config.model.tower:
        return open_run_model(config)
    what = "is missing, and no tower and language are named in its place"
    raise ConfigError([Fault("model.source", what, "add model.source=..., or model.tower and model.language")])


def _layout_faults(
    config: VisionTrainingConfig, source: VisionModelSource | None, layout: Layout, world_size: int
) -> list[Fault]:
    faults = deep_faults(source, layout) if source is not None and config.encoder is None else []
    return faults + encoder_faults(config, source, layout, world_size)


def deep_faults(source: VisionModelSource, layout: Layout) -> list[Fault]:
    """Layers into which features go, on a stage that has none."""
    deep = source.parts.projector.deep
    if deep == 0 or layout.stages == 1:
        return []
    first = layout.stage_layers(source.config.num_layers, source.config.layer_costs())[0][0]
    if len(first) >= deep:
        return []
    what = (
        f"gives the first stage {len(first)} of the layers, and features of images go into the first {deep}, which the "
        "stage that encodes them must have"
    )
    fix = f"set layout.pipeline_layers, its first at least {deep}, or encode apart: encoder={{}}"
    return [Fault("layout.pipeline", what, fix)]


def _data_faults(config: VisionTrainingConfig) -> list[Fault]:
    data = config.data
    faults = vision_faults(vision_sources([each for each in data.train if each.path]), "data.train")
    faults += vision_faults(vision_sources([each for each in data.validation if each.path]), "data.validation")
    if data.validation and data.validation_fraction > 0:
        what = f"is {data.validation_fraction} while data.validation names sources"
        faults.append(Fault("data.validation_fraction", what, "keep one of the two"))
    if data.min_pixels and data.max_pixels and data.min_pixels > data.max_pixels:
        faults.append(Fault("data.min_pixels", f"is {data.min_pixels}, above data.max_pixels {data.max_pixels}", ""))
    return faults


def _part_faults(config: VisionTrainingConfig) -> list[Fault]:
    """Values that the run would ignore."""
    faults = []
    frozen = config.frozen_parts()
    for name in PART_NAMES:
        part = getattr(config.parts, name)
        if config.lora is not None and part.freeze is not None:
            faults.append(
                Fault(f"parts.{name}.freeze", "would be ignored: with lora only adapters are trained", "remove it")
            )
        if name in frozen and part.lr_scale != 1.0 and config.lora is None:
            faults.append(Fault(f"parts.{name}.lr_scale", "would be ignored: the part is frozen", "remove it"))
    if config.lora is not None:
        faults += [
            Fault(f"train.{key}", "would be ignored: with lora nothing but the adapters is trained", "remove it")
            for key in ("freeze", "train_only")
            if getattr(config.train, key)
        ]
        if config.stage == "align":
            faults.append(
                Fault("stage", "is align, which trains the projector, while lora trains adapters", "set full")
            )
        if config.lora.base is not None:
            what = f"is {config.lora.base}, which is for language models alone"
            faults.append(Fault("lora.base", what, "leave it out"))
        if config.lora.merge and config.engine == "fsdp":
            faults.append(
                Fault("lora.merge", "engine fsdp does not merge adapters", "set engine to megatron, or merge to false")
            )
    if config.samples is not None:
        faults.append(Fault("samples", "would be ignored: texts alone are written by loong-llm", "remove it"))
    if config.lora is None and len(frozen) == len(PART_NAMES):
        faults.append(Fault("parts", "every part is frozen, which leaves nothing to train", "freeze fewer"))
    if config.train.train_only and frozen:
        what = f"is set, and {', '.join(frozen)} frozen as a part"
        faults.append(Fault("train.train_only", what, "give one of the two"))
    return faults


def _model_faults(config: VisionTrainingConfig, source: VisionModelSource) -> list[Fault]:
    found = Findings()
    if config.model.initialise == "weights" and not source.has_weights:
        what = f"is weights, but {config.model.source or config.model.tower} has a config and no weights"
        found.faults.append(Fault("model.initialise", what, "set it to random, or name a folder with weights"))
    longest = source.parts.language.hf_config.get("max_position_embeddings")
    if isinstance(longest, int) and config.data.sequence_length > longest:
        what = f"is {config.data.sequence_length}, beyond the model's max_position_embeddings {longest}"
        fix = "lower it, or set model.overrides.text_config.max_position_embeddings"
        found.faults.append(Fault("data.sequence_length", what, fix))
    tokenizer = unless_faulty(found, "tokenizer", lambda: load_tokenizer(config.tokenizer, source.tokenizer_dir))
    if tokenizer is not None:
        found.faults += tokenizer_faults(tokenizer, source.config.vocab_size)
        found.faults += told_faults(lambda: vision_encoder(config, source, tokenizer), "processor")
    return found.faults


def _trained_faults(config: VisionTrainingConfig, source: VisionModelSource, device: Device | None) -> list[Fault]:
    language = source if config.encoder is None else source.only("language")
    faults = _choice_faults(config, source) + router_record_faults(config, source)
    return faults + kept_part_faults(config.recompute, config.offload, language)


def _choice_faults(config: VisionTrainingConfig, source: VisionModelSource) -> list[Fault]:
    """What is wrong with the weights that are trained."""
    if config.lora is not None and (config.model.initialise == "random" or not source.has_weights):
        what = "adapts a model whose weights are drawn at random"
        return [Fault("lora", what, "name a folder with weights as model.source, or train all weights")]
    return told_faults(
        lambda: choose_trained(with_chosen_parts(config, source), source, (), ParallelContext.single()), "lora"
    )


def _part_facts(config: VisionTrainingConfig, source: VisionModelSource) -> dict[str, str]:
    """A line for each part: what it is, its parameters, and whether it is trained."""
    parts, frozen = source.parts, config.frozen_parts()
    lines = {
        "tower": (parts.tower_kind.name, parts.tower.parameter_count()),
        "projector": (parts.projector_kind.name, parts.projector.parameter_count()),
        "language": (parts.language.family.name, parts.language.config.parameter_count()),
    }
    told = {}
    for name, (kind, count) in lines.items():
        state = ""
        if config.lora is not None:
            state = ", adapted" if name in config.lora.parts else ", as it is"
        elif name in frozen:
            state = ", frozen"
        elif (scale := getattr(config.parts, name).lr_scale) != 1.0:
            state = f", learning rate x {scale:g}"
        told[name] = f"{kind}, {count:,} parameters{state}"
    if config.encoder is not None:
        own = encoder_layout(config.encoder)
        told["encoder"] = f"apart from the language model, each image encoded by {counted(own.tensor, 'rank')}"
    return told


_CHECKS = OwnChecks(
    sections=lambda config: _data_faults(config) + _part_faults(config),
    open_model=_open_model,
    model=_model_faults,
    layout=_layout_faults,
    trained=_trained_faults,
    memory=lambda config, source, device, world_size: ([], host_memory_faults(config, source, device, world_size)),
    facts=lambda config, source, layout, world_size, device: (
        run_facts(config, source, layout, world_size, False) | _part_facts(config, source)
    ),
)
