"""The run file of `loong-vla train`. Imports neither torch nor transformers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from loong_core.config import MAY_CHANGE, REQUIRED, RunConfig, Section
from loong_core.config.sections import Count, Fraction, Positive, Whole
from loong_vla.data.augmentation import AugmentationSection


class ModelSection(Section):
    """The policy that is trained; `model: FOLDER` is short for `model: {source: FOLDER}`.

    Attributes:
        source: a folder in the form of lerobot's `pretrained_model/` (openpi's and NVIDIA's names of weights are read
            too).
        initialise: `random` draws weights, `weights` loads the folder's, `auto` loads them where there are any.
        overrides: keys of the folder's `config.json` to replace.
    """

    shorthand = "source"

    source: Annotated[str, REQUIRED] = ""
    initialise: Literal["auto", "random", "weights"] = "auto"
    overrides: dict[str, Any] = Field(default_factory=dict)


class SourceSection(Section):
    """One dataset; a path is short for it.

    Attributes:
        path: a LeRobot dataset's folder, version 3.0, 2.1 or 2.0.
        weight: its share in the mixture, relative to the others'; all datasets have one, or none.
        embodiment: whose recordings these are; datasets of one embodiment are normalised alike. GR00T has weights for
            each of those that it knows; by default the one that the policy's family means where none is named.
        cameras: the policy's cameras to the dataset's, where the names differ.
    """

    shorthand = "path"

    path: Annotated[str, REQUIRED] = ""
    weight: Positive | None = None
    embodiment: str | None = None
    cameras: dict[str, str] = Field(default_factory=dict)


class DataSection(Section):
    """Recordings, and how samples are made of them.

    Attributes:
        train: one or several datasets.
        validation_fraction: share of each dataset's episodes, the last ones, that is held out.
        action_times: seconds from an observation to each action that is predicted, multiples of a frame; by default
            one frame after the other, beginning with the observation's own.
        statistics: by which states and actions are normalised: the datasets' `meta/stats.json` (`data`), or those of
            the policy's folder (`model`).
        constant_dimensions: what becomes of numbers that never change: `stop` is a fault, `centre` feeds 0.
        missing_cameras: whether a policy's camera that no dataset has is a fault, or left out.
        corrupt_frames: whether a picture that cannot be read stops the run, or another sample takes its place.
        reader: whether datasets are read by this package (`own`: versions 3.0, 2.1 and 2.0, videos front to back) or by
            lerobot's library, item by item (`lerobot`: versions 3.0 and, converted to a temporary folder, 2.1; needs
            the extra `lerobot`); samples are the same.
        picture_cache_mb: decoded pictures that a rank keeps in memory, in MB; for datasets so small that every picture
            comes up many times.
        augmentation: how pictures are changed at random, if the section is given; `augmentation: {}` takes the
            defaults.
    """

    train: Annotated[list[SourceSection], REQUIRED] = Field(default_factory=list)
    validation_fraction: Fraction = 0.0
    action_times: list[float] | None = None
    statistics: Literal["data", "model"] = "data"
    constant_dimensions: Literal["stop", "centre"] = "stop"
    missing_cameras: Literal["stop", "leave_out"] = "stop"
    corrupt_frames: Annotated[Literal["stop", "skip"], MAY_CHANGE] = "stop"
    reader: Annotated[Literal["own", "lerobot"], MAY_CHANGE] = "own"
    picture_cache_mb: Annotated[Whole, MAY_CHANGE] = 0
    augmentation: AugmentationSection | None = None


class AdaptersSection(Section):
    """Low-rank adapters (LoRA) on a policy's vision-language model; the policy is written with them merged in.

    Attributes:
        rank: inner width of an adapter.
        alpha: an adapter's output is multiplied by `alpha / rank`.
        dropout: share of an adapter's inputs that is dropped in training.
        targets: patterns of names of the vision-language model's linear layers (`q_proj`, `visual.*`), or
            `all-linear`.
        beside: patterns of names of what is trained whole, without adapters.
    """

    rank: Count = 16
    alpha: Positive = 32.0
    dropout: Fraction = 0.0
    targets: str | list[str] = "all-linear"
    beside: list[str] = Field(default_factory=lambda: ["action_head.*"])


class PolicyTrainingConfig(RunConfig):
    """A training run of a robot policy.

    Attributes:
        engine: `fsdp` alone serves policies.
        model: what is trained.
        tokenizer: a Hugging Face folder, or `bytes` for the built-in one; the policy folder's by default.
        data: what it is trained on.
        lora: adapters to train in place of the vision-language model's weights, if the section is given (GR00T).
    """

    engine: Annotated[Literal["fsdp"], MAY_CHANGE] = "fsdp"
    model: Annotated[ModelSection, REQUIRED] = ModelSection()
    tokenizer: str | None = None
    data: DataSection = DataSection()
    lora: AdaptersSection | None = None
