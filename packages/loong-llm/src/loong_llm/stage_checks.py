"""What can be wrong with a run because of its stage, its adapters or its frozen parts, known before it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from loong_core.config.sections import PartsSection
from loong_core.data.checks import source_faults
from loong_core.data.sources import SourceSpec, weights_of
from loong_core.device.cpu import CpuDevice
from loong_core.device.protocol import Device
from loong_core.errors import Fault, UserError
from loong_core.nn import four_bit
from loong_core.nn.lora import is_adaptable
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_core.precision.apply import chosen_by_name
from loong_core.precision.run import precision_settings
from loong_core.precision.table import read_table
from loong_core.wording import counted
from loong_llm.conversations.corpus import conversation_faults
from loong_llm.model import ModelSource
from loong_llm.recipes.stage_data import conversation_encoder, conversation_sources
from loong_llm.recipes.trained_model import choose_trained
from loong_llm.recipes.training_config import DataSection, SourceSection, TrainingConfig
from loong_llm.source_kinds import SourceKind, heeds, of_kind

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OF_ONE_KIND: dict[SourceKind, tuple[str, ...]] = {
    "documents": ("text_key", "attend_across_documents"),
    "conversations": (
        "chat_template",
        "template_variables",
        "train_on",
        "bad_samples",
        "long_samples",
        "packing",
    ),
}
"""Keys of the `data` section that are heeded where there are sources of this kind."""

_OTHER: dict[SourceKind, SourceKind] = {"documents": "conversations", "conversations": "documents"}


def stage_faults(config: TrainingConfig) -> list[Fault]:
    """Values that the run's stage, or its adapters, would ignore. A value equal to the default asks for nothing."""
    data, default = config.data, DataSection()
    faults = [
        Fault(f"data.{key}", f"would be ignored: it is for {kind}, {_why_none(config, kind)}", "remove it")
        for kind, keys in _OF_ONE_KIND.items()
        if not heeds(config, kind)
        for key in keys
        if getattr(data, key) != getattr(default, key)
    ]
    faults += _form_faults(config)
    faults += _blend_faults(config)
    if config.lora is not None:
        faults += [
            Fault(f"train.{key}", "would be ignored: with lora nothing but the adapters is trained", "remove it")
            for key in ("freeze", "train_only")
            if getattr(config.train, key)
        ]
        if config.lora.merge and config.checkpoint.export_every is not None:
            what = "cannot be heeded: to merge adapters ends their training"
            faults.append(Fault("checkpoint.export_every", what, "remove it, or set lora.merge to false"))
        if config.lora.merge and config.engine == "fsdp":
            faults.append(
                Fault("lora.merge", "engine fsdp does not merge adapters", "set engine to megatron, or merge to false")
            )
    return faults


def _why_none(config: TrainingConfig, kind: SourceKind) -> str:
    return (
        f"of which there is no source, they hold {_OTHER[kind]}"
        if config.stage == "midtrain"
        else (f"the stage is {config.stage}")
    )


def _form_faults(config: TrainingConfig) -> list[Fault]:
    """Forms of records that the stage would ignore, or that it does not take."""
    parts = (("train", config.data.train), ("validation", config.data.validation))
    if config.stage == "pretrain":
        what = "would be ignored: it is for stages midtrain and sft, the stage is pretrain"
        return [
            Fault(f"data.{part}.{key}", what, "remove it")
            for part, sources in parts
            for key in ("format", "fields")
            if any(getattr(source, key) for source in sources)
        ]
    faults = []
    for part, sources in parts:
        if config.stage == "sft" and any(source.format == "documents" for source in sources):
            what = "is documents, the stage is sft, which takes conversations"
            faults.append(Fault(f"data.{part}.format", what, "set stage to midtrain, or leave the source out"))
        if any(source.format == "documents" and source.fields for source in sources):
            what = "would be ignored: the source's format is documents; data.text_key names the field of their text"
            faults.append(Fault(f"data.{part}.fields", what, "remove it"))
    return faults


def _blend_faults(config: TrainingConfig) -> list[Fault]:
    """What is wrong with the schedule of the blend's weights."""
    points, sources, key = config.data.blend_schedule, config.data.train, "data.blend_schedule"
    if not points:
        return []
    if len(sources) < 2:
        return [Fault(key, "would be ignored: a blend of one source is always the same", "remove it")]
    faults = []
    for number, point in enumerate(points):
        own = f"{key}[{number}]"
        if len(point.weights) != len(sources):
            what = f"has {counted(len(point.weights), 'weight')}, data.train has {len(sources)} sources"
            faults.append(Fault(f"{own}.weights", what, "give one for each source, in their order"))
        if not any(point.weights):
            faults.append(Fault(f"{own}.weights", "are all 0", "give at least one source a weight"))
        if number and point.step <= points[number - 1].step:
            what = f"is {point.step}, after a point at step {points[number - 1].step}"
            faults.append(Fault(f"{own}.step", what, "put the points in order"))
        if config.train.steps is not None and point.step > config.train.steps:
            what = f"is {point.step}, beyond the run's {config.train.steps} steps"
            faults.append(Fault(f"{own}.step", what, "lower it"))
    if points[0].step > 0 and any(source.weight is None for source in sources):
        what = f"begins at step {points[0].step}, and not every source has a weight for the steps before"
        faults.append(Fault(key, what, "give each source a weight, or add a point at step 0"))
    return faults


def data_faults(config: TrainingConfig) -> list[Fault]:
    """What is wrong with the sources, by their names and beginnings."""
    data = config.data
    faults = []
    for key, sources in (("data.train", data.train), ("data.validation", data.validation)):
        faults += _source_faults(config, key, [source for source in sources if source.path])
    if data.validation and data.validation_fraction > 0:
        what = f"is {data.validation_fraction} while data.validation names sources"
        faults.append(Fault("data.validation_fraction", what, "keep one of the two"))
    return faults


def template_faults(config: TrainingConfig, tokenizer: PreTrainedTokenizerBase) -> list[Fault]:
    """Why the tokenizer or the chat template does not serve the stage."""
    if not heeds(config, "conversations"):
        return []
    return told_faults(lambda: conversation_encoder(config, tokenizer), "data.chat_template")


def trained_part_faults(config: TrainingConfig, model: ModelSource) -> list[Fault]:
    """What is wrong with the choice of what is trained: adapters, or patterns of weights."""
    drawn = config.model.initialise == "random" or model.weights is None
    if config.lora is not None and drawn:
        what = f"adapts a model whose weights are drawn at random: {config.model.source} brings none that are loaded"
        return [Fault("lora", what, "name a folder with weights as model.source, or train all weights")]
    return told_faults(lambda: choose_trained(config, model, (), ParallelContext.single()), "lora")


def four_bit_faults(config: TrainingConfig, model: ModelSource, device: Device | None) -> list[Fault]:
    """Why frozen matrices cannot be kept in 4 bits, where that is asked for."""
    if config.lora is None or config.lora.base is None:
        return []
    faults = []
    if config.fp8 is not None:
        what = "keeps matrices in 4 bits, and fp8 makes products of matrices in 8"
        faults.append(Fault("lora.base", what, "keep one of the two"))
    if any(rule.experts for rule in model.weight_map.rules):
        what = f"rounds linear layers, and most of {config.model.source} is experts, which would stay as they are"
        faults.append(Fault("lora.base", what, "leave it out"))
    tensor = config.layout.tensor
    for rule in model.weight_map.rules:
        size = 1 if rule.whole else tensor
        inputs = {span.local_shape(size)[-1] for span in rule.spans} if is_adaptable(rule) else set()
        if odd := [width for width in inputs if width % four_bit.BLOCK]:
            ranks = "" if tensor == 1 else f" on each of {tensor} tensor ranks"
            what = f"rounds blocks of {four_bit.BLOCK} numbers, and {rule.ours} has {odd[0]} inputs{ranks}"
            faults.append(Fault("lora.base", what, "leave it out, or lower layout.tensor"))
            break
    if not faults and device is not None and (why := four_bit.why_not(device.torch_type)):
        faults.append(Fault("lora.base", *why))
    return faults


def kept_part_faults(
    recompute: PartsSection, offload: PartsSection, model: ModelSource, component: str = ""
) -> list[Fault]:
    """What is wrong with the patterns of what is recomputed or offloaded.

    Args:
        recompute, offload: the sections.
        model: or the component of it that they are about.
        component: what stands before the sections' names in the run file, as `encoder.`.
    """
    if not recompute.modules and not offload.modules:
        return []
    context, layers = ParallelContext.single("meta"), range(model.config.num_layers)
    stage = model.make_stage(context, layers=layers, embedding=True, head=True, dtype=torch.float32)
    return told_faults(
        lambda: keep_less(
            [stage], context, CpuDevice(), recompute=recompute.parts, offload=offload.parts, component=component
        ),
        f"{component}recompute",
    )


def precision_faults(config: TrainingConfig, model: ModelSource) -> list[Fault]:
    """What is wrong with the section `fp8`: patterns that match nothing, measurements that are missing."""
    section = config.fp8
    if section is None:
        return []
    if config.precision != "bf16":
        what = f"rounds the operands of products, and precision {config.precision} would keep them whole elsewhere"
        return [Fault("fp8", what, "set precision to bf16, or remove the section")]
    faults = told_faults(
        lambda: chosen_by_name(model.weight_map, model.config.num_layers, precision_settings(section)), "fp8.overrides"
    )
    if section.table is not None:
        path = Path(section.table).expanduser()
        faults += told_faults(lambda: read_table(path), "fp8.table")
    return faults


def router_record_faults(config: TrainingConfig, model: ModelSource) -> list[Fault]:
    """Choices of experts asked for of a model that has none."""
    if config.logging.router_choices_every is None or model.config.mixtures:
        return []
    what = f"would be ignored: {model.name} has no routers"
    return [Fault("logging.router_choices_every", what, "remove it")]


def _source_faults(config: TrainingConfig, key: str, sources: Sequence[SourceSection]) -> list[Fault]:
    """The faults of each kind's sources; those of a mixture keep their own numbers."""
    faults = []
    try:
        weights_of(sources)
    except UserError as error:
        faults.append(Fault(key, str(error)))
    for number, source in enumerate(sources):
        own = key if len(sources) == 1 else f"{key}[{number}]"
        alone = source.model_copy(update={"weight": None})
        if of_kind(config, [source], "conversations"):
            faults += conversation_faults(conversation_sources([alone]), own)
        else:
            faults += source_faults([SourceSpec(source.path)], own, config.data.text_key)
    return faults


def told_faults(action: Callable[[], object], key: str) -> list[Fault]:
    """The fault that an action raises, under the key that its message begins with, else under `key`."""
    try:
        action()
    except UserError as error:
        first, _, rest = str(error).partition(" ")
        named = first.startswith(("data.", "fp8.", "lora.", "train.", "recompute.", "offload.")) and bool(rest)
        return [Fault(first.removesuffix(":"), rest) if named else Fault(key, str(error))]
    return []
