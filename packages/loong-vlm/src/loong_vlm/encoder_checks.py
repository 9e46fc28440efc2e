"""What keeps an encoder with a layout of its own from serving a run: every fault, before the run."""

from __future__ import annotations

from loong_core.config.checks import parts_faults
from loong_core.engine.choice import engine_faults
from loong_core.engine.components.feeding import feeding_faults
from loong_core.errors import Fault
from loong_core.nn.name_patterns import matches
from loong_core.parallel.layout import Layout
from loong_llm.stage_checks import kept_part_faults
from loong_vlm.parts import ModelParts
from loong_vlm.recipes.trained_parts import tensors_of
from loong_vlm.recipes.training_config import EncoderSection, VisionTrainingConfig, encoder_layout
from loong_vlm.source import VisionModelSource


def encoder_faults(
    config: VisionTrainingConfig, source: VisionModelSource | None, layout: Layout, world_size: int
) -> list[Fault]:
    """Everything wrong with the section `encoder`; nothing where it is not given.

    Args:
        config: the run's.
        source: the model, None where it is faulty.
        layout: the language model's.
        world_size: ranks in all.
    """
    section = config.encoder
    if section is None:
        return []
    own = encoder_layout(section)
    engine = engine_faults(section.engine or config.engine, own)
    faults = [Fault(f"encoder.{fault.where}", fault.what, fault.fix) for fault in engine]
    faults += encoder_layout_faults(own, None if source is None else source.parts, layout, world_size)
    if source is not None:
        faults += _ignored_by_encoder(config, source)
        if not faults:
            faults += kept_part_faults(section.recompute, section.offload, source.only("encoder"), "encoder.")
    return faults + _section_faults(config, section)


def encoder_layout_faults(own: Layout, parts: ModelParts | None, layout: Layout, world_size: int) -> list[Fault]:
    """Why an encoder's degrees do not serve these ranks, this language model's layout, or this tower."""
    faults = [Fault(f"encoder.{fault.where}", fault.what, fault.fix) for fault in own.faults(world_size)]
    faults += feeding_faults(own, layout, "encoder")
    return faults + ([] if parts is None else _shared_faults(parts, own, layout))


def _shared_faults(parts: ModelParts, encoder: Layout, language: Layout) -> list[Fault]:
    """Why so many tensor ranks cannot share the tower."""
    if encoder.tensor == 1:
        return []
    kind = parts.tower_kind
    if kind.shared is None:
        what = f"is {encoder.tensor}, and a {kind.name} tower is whole on every rank"
        return [Fault("encoder.layout.tensor", what, "leave it at 1: each rank then encodes images of its own")]
    units = kind.shared(parts.tower)
    undivided = [f"{count:,} {name}" for name, count in units.items() if count % encoder.tensor]
    if not undivided:
        return []
    serving = [
        degree
        for degree in range(1, language.tensor * language.context + 1)
        if not feeding_faults(Layout(tensor=degree), language, "")
        and not any(count % degree for count in units.values())
    ]
    nearest = min(serving, key=lambda degree: (abs(degree - encoder.tensor), degree))
    what = f"is {encoder.tensor}, which does not divide the vision tower's {' and '.join(undivided)}"
    return [Fault("encoder.layout.tensor", what, f"the nearest that serves is {nearest}")]


def _section_faults(config: VisionTrainingConfig, section: EncoderSection) -> list[Fault]:
    """Choices that do not go together, whatever the model."""
    faults = parts_faults("encoder.recompute", section.recompute) + parts_faults("encoder.offload", section.offload)
    engine = section.engine or config.engine
    if config.train.ema is not None and config.engine == "fsdp" and engine == "megatron":
        what = "is megatron, which keeps no average of the weights, while train.ema asks for one of all"
        faults.append(Fault("encoder.engine", what, "set it to fsdp, or remove train.ema"))
    if config.lora is not None and config.lora.merge and engine == "fsdp" and config.engine == "megatron":
        what = "is fsdp, which does not merge adapters, while lora.merge asks for it"
        faults.append(Fault("encoder.engine", what, "set it to megatron, or lora.merge to false"))
    if engine == "fsdp" and config.fsdp.compile and not section.offload.parts.nothing:
        what = "moves what compiled layers keep, which torch.compile does not let be moved"
        faults.append(Fault("encoder.offload", what, "set fsdp.compile=false, or recompute instead"))
    return faults


def _ignored_by_encoder(config: VisionTrainingConfig, source: VisionModelSource) -> list[Fault]:
    """Patterns of 8-bit products that would be for tower or projector alone."""
    vision = {*tensors_of("tower", source), *tensors_of("projector", source)}
    language = set(tensors_of("language", source))
    return [
        Fault("fp8.overrides", f"{pattern} would be ignored: the encoder makes no products in 8 bits", "remove it")
        for pattern in (config.fp8.overrides if config.fp8 is not None else ())
        if _matches(vision, pattern) and not _matches(language, pattern)
    ]


def _matches(names: set[str], pattern: str) -> bool:
    return any(matches(name, pattern) for name in names)
