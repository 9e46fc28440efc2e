"""The run file of `loong-dit train`: what is trained, on which cache, with what noise."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from loong_core.config import MAY_CHANGE, REQUIRED, RunConfig, Section
from loong_core.config.sections import Count, Fraction, NonNegative, Positive, Whole


class DiffusionModelSection(Section):
    """What is trained.

    Attributes:
        source: a named size (`loong models` lists them), a transformer's folder, or a diffusers pipeline's.
        overrides: keys of the transformer's `config.json` to replace.
        text_length: tokens that captions are padded to with zeros, which attention sees, in place of the model's own
            number (512 for Wan); the model's folder keeps it.
        initialise: `weights` loads them, `random` draws them, `auto` loads them if there are any.
        expert: which transformer of a model of two (Wan 2.2 A14B): of high noise, of low noise, or both in one run.
        condition: `first_frame` teaches a model to go on from a given frame, for models whose tokens have each a
            timestep (Wan 2.2 TI2V); `none` gives all frames noise.
        condition_share: share of samples whose first frame is given.
    """

    shorthand = "source"

    source: Annotated[str, REQUIRED] = ""
    overrides: dict[str, Any] = Field(default_factory=dict)
    text_length: Count | None = None
    initialise: Literal["auto", "random", "weights"] = "auto"
    expert: Literal["both", "high", "low"] = "both"
    condition: Literal["none", "first_frame"] = "none"
    condition_share: Annotated[float, Field(gt=0, le=1)] = 0.5


class OnlineSection(Section):
    """Pictures and videos that are encoded as training asks for them; the keys are the options of `loong-dit cache`.

    Attributes:
        media: a list, .csv, .json or .jsonl, with video or image, prompt, edit_image.
        base: folder that its paths are relative to; the list's own by default.
        sizes: rows x columns, as 480x832; the nearest shape is taken.
        frames: of a video, the most that there are.
        vae: a VAE's folder, pixels, or pixels-grey; by default the model's own.
        text_encoder: a pipeline's folder, or words-N; by default the model's own.
        dtype: of what they make; a cache's default is the same.
        precision: what they compute in.
        longest_caption: tokens beyond which a caption is cut.
        bad_media: `stop` ends the run at a file that cannot be read, `skip` takes the next of its size and counts it.
    """

    shorthand = "media"

    media: Annotated[str, REQUIRED] = ""
    base: str | None = None
    sizes: Annotated[list[str], Field(min_length=1)] = Field(default_factory=lambda: ["480x832"])
    frames: Annotated[list[Count], Field(min_length=1)] = Field(default_factory=lambda: [1])
    vae: str | None = None
    text_encoder: str | None = None
    dtype: Literal["bf16", "fp32"] = "bf16"
    precision: Literal["bf16", "fp32"] = "fp32"
    longest_caption: Count = 512
    bad_media: Annotated[Literal["stop", "skip"], MAY_CHANGE] = "stop"


class LatentDataSection(Section):
    """What is trained on.

    Attributes:
        cache: a folder that `loong-dit cache` made.
        online: in its place, media that are encoded as they are asked for.
        validation: another one, held out; or `validation_fraction` of the first.
        validation_fraction: share of the cache's samples that is held out.
        batching: `packed` puts samples of any sizes into a microbatch; `sizes` puts samples of one size together, which
            attention is faster for.
        caption_dropout: share of samples that are trained without their caption, for classifier-free guidance.
    """

    shorthand = "cache"

    cache: str | None = None
    online: OnlineSection | None = None
    validation: str | None = None
    validation_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    batching: Literal["packed", "sizes"] = "packed"
    caption_dropout: Fraction = 0.1


class FlowSection(Section):
    """Which noise levels are trained on, from 0 (clean) to 1 (noise).

    Attributes:
        timesteps: how they are drawn before the shift: `uniform`; `logit_normal`, the logistic of a normal number;
            `cosine`, uniform in the angle between signal and noise.
        shift: above 1 it moves levels towards noise, `shift s / (1 + (shift - 1) s)`.
        mean: of the normal number.
        std: of the normal number.
        weighting: `bell` counts middle levels more.
        range: levels outside are not drawn; an expert's own range lies within.
    """

    timesteps: Literal["uniform", "logit_normal", "cosine"] = "uniform"
    shift: Positive = 5.0
    mean: Annotated[float, Field(allow_inf_nan=False)] = 0.0
    std: Positive = 1.0
    weighting: Literal["none", "bell"] = "none"
    range: Annotated[list[float], Field(min_length=2, max_length=2)] = Field(default_factory=lambda: [0.0, 1.0])


class DiffusionLoraSection(Section):
    """Low-rank adapters in place of all weights (LoRA).

    Attributes:
        rank: inner width of an adapter.
        alpha: an adapter's output is multiplied by `alpha / rank`.
        dropout: share of an adapter's inputs that is dropped in training.
        targets: patterns of diffusers' layer names (`to_q`, `blocks.3.*`), or `all-linear`.
        format: how the file names layers: as diffusers' pipelines read them, or as DiffSynth does.
        merge: whether to write whole transformers with the adapters in them.
    """

    rank: Count = 32
    alpha: Positive = 32.0
    dropout: Fraction = 0.0
    targets: str | list[str] = "all-linear"
    format: Annotated[Literal["diffusers", "diffsynth"], MAY_CHANGE] = "diffusers"
    merge: Annotated[bool, MAY_CHANGE] = False


class SamplesSection(Section):
    """Samples drawn while a run trains, in `samples/` of the run folder.

    Attributes:
        every: steps from one drawing to the next; also after the last.
        captions: what is drawn; by default captions of the cache's first samples.
        count: how many, where no captions are given.
        steps: of the sampler.
        guidance: strength of classifier-free guidance; 1 for none.
        shift: of the sampler's noise levels; that of `flow` by default.
        seed: of their noise.
        fps: frames a second of videos.
    """

    every: Count = 500
    captions: list[str] = Field(default_factory=list)
    count: Count = 4
    steps: Count = 30
    guidance: NonNegative = 4.0
    shift: Positive | None = None
    seed: Whole = 0
    fps: Count = 16


class DiffusionTrainingConfig(RunConfig):
    """A training run of a diffusion transformer.

    Attributes:
        model: what is trained.
        data: what it is trained on.
        flow: with what noise.
        lora: adapters to train in place of the weights, if the section is given.
        samples: what is drawn while it trains, if the section is given.
    """

    engine: Annotated[Literal["megatron", "fsdp"], MAY_CHANGE] = "fsdp"
    model: Annotated[DiffusionModelSection, REQUIRED] = DiffusionModelSection()
    data: Annotated[LatentDataSection, REQUIRED] = LatentDataSection()
    flow: FlowSection = FlowSection()
    lora: DiffusionLoraSection | None = None
    samples: Annotated[SamplesSection | None, MAY_CHANGE] = None
