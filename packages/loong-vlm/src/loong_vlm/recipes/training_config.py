"""The run file of `loong-vlm train`. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from loong_core.config import MAY_CHANGE, REQUIRED, Section
from loong_core.config.sections import Count, LayoutSection, NonNegative, Positive
from loong_core.config.sections import PartsSection as ChosenSection
from loong_core.parallel.layout import Layout
from loong_llm.recipes.training_config import LoraSection, ModelSection, TrainingConfig

PART_NAMES = ("tower", "projector", "language")


class VisionModelSection(ModelSection):
    """What is trained; `model: NAME` is short for `model: {source: NAME}`.

    Attributes:
        source: a whole model: a named size (`loong models` lists them), or a Hugging Face folder. May be left out where
            tower and language are named.
        tower: another model, named or a folder, whose vision tower takes the place of the source's.
        projector: likewise its projector.
        language: likewise its language model; a model of loong-llm, too.
        initialise: `random` draws weights, `weights` loads the folders', `auto` loads them where there are any.
        overrides: keys of the model's `config.json` to replace; those of a part in its section.
    """

    shorthand = "source"

    source: str = ""
    tower: str | None = None
    projector: str | None = None
    language: str | None = None


class PartSection(Section):
    """One part of the model.

    Attributes:
        freeze: whether it stays as it is; by default the stage says.
        lr_scale: what its learning rate is multiplied by.
    """

    freeze: bool | None = None
    lr_scale: NonNegative = 1.0


class PartsSection(Section):
    """The three parts."""

    tower: PartSection = PartSection()
    projector: PartSection = PartSection()
    language: PartSection = PartSection()


class EncoderSection(Section):
    """Tower and projector with a layout of their own, apart from the language model (the decoupled form).

    All ranks that hold a copy of the language model encode the images of a step first, each image once; features travel
    to the pipeline stages that read them, and their gradients back.

    Attributes:
        layout: degrees of the encoder: `tensor` ranks share the tower, `shard` and `replicate` share the optimizer's
            state among what is left; the other degrees stay 1.
        engine: what runs it; by default that of the language model.
        precision: what it computes in; by default that of the language model.
        recompute: parts of it that keep their input only. A step's images are all encoded before the first gradient
            returns, so `full` saves most.
        offload: parts of it that keep on the host what they need for backward.
        offload_features: whether features wait on the host for their microbatch, and their gradients for the way back.
    """

    layout: LayoutSection = LayoutSection()
    engine: Literal["megatron", "fsdp"] | None = None
    precision: Literal["fp32", "bf16"] | None = None
    recompute: ChosenSection = ChosenSection()
    offload: ChosenSection = ChosenSection()
    offload_features: bool = False


def encoder_layout(section: EncoderSection) -> Layout:
    """The section's degrees."""
    return Layout(**section.layout.model_dump())


class VisionSourceSection(Section):
    """One source: a file, a folder (a dataset's too), a glob, or tars; a path is short for it.

    Attributes:
        path: where it is.
        weight: its share in the blend, relative to the others'; all sources have one, or none.
        format: form of its records; found out by default.
        fields: our names of fields to the file's, such as `{images: pictures}`.
        media_root: folder that names of images are relative to; each file's own by default.
    """

    shorthand = "path"

    path: Annotated[str, REQUIRED] = ""
    weight: Positive | None = None
    format: Literal["messages", "sharegpt", "alpaca", "caption"] | None = None
    fields: dict[str, str] = Field(default_factory=dict)
    media_root: str | None = None


class VisionDataSection(Section):
    """Conversations with images and videos, and how they become sequences.

    Attributes:
        train: one or several sources.
        validation: held-out sources.
        validation_fraction: share of the training conversations to hold out instead.
        sequence_length: tokens of a sequence, placeholders of images among them.
        patch_budget: patches that the images of a sequence have at most; any number by default.
        min_pixels: images with fewer are enlarged, in place of what the model's folder says.
        max_pixels: images with more are reduced, in place of what the model's folder says.
        cache: folder for prepared samples, seen by all ranks; `cache` in the run folder by default.
        workers: processes that prepare, at the start of the run.
        threads: that decode images during the run, on each rank.
        chat_template: how conversations are written, a shipped template's name or a `.jinja` file; the tokenizer's own
            by default.
        template_variables: values for the template's own variables.
        train_on: what is learnt: all that the assistant says, what it says after the user's last message, or prompts
            too.
        bad_samples: whether a record that cannot be trained on stops the run, or is left out and counted.
        long_samples: what becomes of a conversation longer than a sequence.
        packing: whether conversations share sequences.
        balance: whether samples are dealt out to data ranks by what they cost.
    """

    train: Annotated[list[VisionSourceSection], REQUIRED] = Field(default_factory=list)
    validation: list[VisionSourceSection] = Field(default_factory=list)
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    sequence_length: Count = 2048
    patch_budget: Count | None = None
    min_pixels: Count | None = None
    max_pixels: Count | None = None
    cache: Annotated[str | None, MAY_CHANGE] = None
    workers: Annotated[Count, MAY_CHANGE] = 1
    threads: Annotated[Count, MAY_CHANGE] = 2
    chat_template: str | None = None
    template_variables: dict[str, Any] = Field(default_factory=dict)
    train_on: Literal["assistant", "last_turn", "everything"] = "assistant"
    bad_samples: Literal["stop", "skip"] = "stop"
    long_samples: Literal["truncate", "drop", "stop"] = "truncate"
    packing: bool = True
    balance: Annotated[bool, MAY_CHANGE] = False


class VisionLoraSection(LoraSection):
    """Low-rank adapters in place of all weights (LoRA).

    Attributes:
        parts: whose layers take adapters.
        rank: inner width of an adapter.
        alpha: an adapter's output is multiplied by `alpha / rank`.
        dropout: share of an adapter's inputs that is dropped in training.
        targets: patterns of Hugging Face layer names (`q_proj`, `layers.3.mlp.*`), or `all-linear`.
        rslora: whether to multiply by `alpha / sqrt(rank)` instead.
        dora: whether to train the magnitude of each row of a matrix apart from its direction.
        base: in which precision frozen matrices are kept; here always the run's, 4 bits are for language models alone.
        merge: whether to write the whole model with the adapters in it (`hf/`), not the adapters alone (`adapter/`).
    """

    parts: list[Literal["tower", "language"]] = Field(default_factory=lambda: ["language"])


class VisionTrainingConfig(TrainingConfig):
    """A training run of a vision-language model.

    Attributes:
        stage: `align` teaches the projector to speak to a language model, the other parts frozen; `full` trains every
            part. What of a conversation is learnt is `data.train_on`.
        model: what is trained.
        tokenizer: a Hugging Face folder; the model folder's by default.
        processor: a Hugging Face folder whose preprocessor files say how images are read; the model folder by default.
        parts: of each part whether it is frozen, and its learning rate.
        encoder: how tower and projector are run apart from the language model, if the section is given; `encoder: {}`
            takes the defaults. Without it they are within its first stage.
        data: what it is trained on.
        lora: adapters to train in place of the weights, if the section is given.
    """

    stage: Literal["align", "full"] = "full"  # type: ignore[assignment]
    model: Annotated[VisionModelSection, REQUIRED] = VisionModelSection()
    processor: str | None = None
    parts: PartsSection = PartsSection()
    encoder: Annotated[EncoderSection | None, MAY_CHANGE] = None
    data: VisionDataSection = VisionDataSection()  # type: ignore[assignment]
    lora: VisionLoraSection | None = None

    def frozen_parts(self) -> tuple[str, ...]:
        """Parts that stay as they are."""
        by_stage = {"tower": True, "projector": False, "language": True} if self.stage == "align" else {}
        found = []
        for name in PART_NAMES:
            own = getattr(self.parts, name).freeze
            if by_stage.get(name, False) if own is None else own:
                found.append(name)
        return tuple(found)
