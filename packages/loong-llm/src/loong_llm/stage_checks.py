"""What can be wrong with a run because of its stage, its adapters or its frozen parts, known before it starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from loong_core.data.checks import source_faults
from loong_core.data.sources import SourceSpec
from loong_core.device.cpu import CpuDevice
from loong_core.errors import Fault, UserError
from loong_core.nn.decoder import Decoder
from loong_core.nn.recompute import keep_less
from loong_core.parallel.context import ParallelContext
from loong_llm.conversations.corpus import conversation_faults
from loong_llm.model import ModelSource
from loong_llm.recipes.sft import conversation_encoder, conversation_sources
from loong_llm.recipes.trained_model import choose_trained
from loong_llm.recipes.training_config import DataSection, SourceSection, TrainingConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_OF_ONE_STAGE = {
    "pretrain": ("text_key", "attend_across_documents"),
    "sft": (
        "chat_template",
        "template_variables",
        "train_on",
        "bad_samples",
        "long_samples",
        "packing",
    ),
}
"""Keys of the `data` section that one stage alone heeds."""


def stage_faults(config: TrainingConfig) -> list[Fault]:
    """Values that the run's stage, or its adapters, would ignore. A value equal to the default asks for nothing."""
    data, default = config.data, DataSection()
    faults = [
        Fault(f"data.{key}", f"would be ignored: it is for stage {stage}, the stage is {config.stage}", "remove it")
        for stage, keys in _OF_ONE_STAGE.items()
        for key in keys
        if stage != config.stage and getattr(data, key) != getattr(default, key)
    ]
    if config.stage != "sft":
        faults += [
            Fault(f"data.{part}.{key}", f"would be ignored: it is for stage sft, the stage is {config.stage}", "remove")
            for part, sources in (("train", data.train), ("validation", data.validation))
            for key in ("format", "fields")
            if any(getattr(source, key) for source in sources)
        ]
    if config.lora is not None:
        faults += [
            Fault(f"train.{key}", "would be ignored: with lora nothing but the adapters is trained", "remove it")
            for key in ("freeze", "train_only")
            if getattr(config.train, key)
        ]
        if config.lora.merge and config.engine == "fsdp":
            faults.append(
                Fault("lora.merge", "engine fsdp does not merge adapters", "set engine to megatron, or merge to false")
            )
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
    if config.stage != "sft":
        return []
    return _told(lambda: conversation_encoder(config, tokenizer), "data.chat_template")


def trained_part_faults(config: TrainingConfig, model: ModelSource) -> list[Fault]:
    """What is wrong with the choice of what is trained: adapters, or patterns of weights."""
    drawn = config.model.initialise == "random" or model.weights is None
    if config.lora is not None and drawn:
        what = f"adapts a model whose weights are drawn at random: {config.model.source} brings none that are loaded"
        return [Fault("lora", what, "name a folder with weights as model.source, or train all weights")]
    return _told(lambda: choose_trained(config, model, (), ParallelContext.single()), "lora")


def kept_part_faults(config: TrainingConfig, model: ModelSource) -> list[Fault]:
    """What is wrong with the patterns of what is recomputed or offloaded."""
    if not config.recompute.modules and not config.offload.modules:
        return []
    stage = Decoder(model.config, ParallelContext.single("meta"))
    recompute, offload = config.recompute.parts, config.offload.parts
    return _told(
        lambda: keep_less([stage], stage.parallel, CpuDevice(), recompute=recompute, offload=offload), "recompute"
    )


def _source_faults(config: TrainingConfig, key: str, sources: Sequence[SourceSection]) -> list[Fault]:
    if config.stage == "sft":
        return conversation_faults(conversation_sources(sources), key)
    return source_faults([SourceSpec(source.path, source.weight) for source in sources], key, config.data.text_key)


def _told(action: Callable[[], object], key: str) -> list[Fault]:
    """The fault that an action raises, under the key that its message begins with, else under `key`."""
    try:
        action()
    except UserError as error:
        first, _, rest = str(error).partition(" ")
        named = first.startswith(("data.", "lora.", "train.", "recompute.", "offload.")) and bool(rest)
        return [Fault(first.removesuffix(":"), rest) if named else Fault(key, str(error))]
    return []
