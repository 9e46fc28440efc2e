"""What a vision-language model is made of: a tower, a projector, a language model, and how features meet the text.

All of it is plain data that imports no torch; a part's kind knows how to build its module and what its tensors are
called. Kinds register by entry point, as families do, so a plug-in brings a tower or a resampler of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from loong_core.nn.decoder_config import DecoderConfig
from loong_llm.families.family import Family
from loong_vlm.data.placeholders import PlaceholderLayout, QwenLayout

if TYPE_CHECKING:
    import torch
    from torch import nn

    from loong_core.checkpoint.weight_map import Rule
    from loong_core.parallel.context import ParallelContext

Grid = tuple[int, int, int]
"""An image's frames (after temporal patching), and its rows and columns of patches."""


class TowerConfig(Protocol):
    """What is asked of any tower's hyperparameters."""

    @property
    def width(self) -> int:
        """Width of its features."""
        ...

    @property
    def patch_dim(self) -> int:
        """Numbers that describe one patch: channels x frames x rows x columns of pixels."""
        ...

    @property
    def merge(self) -> int:
        """Patches come in squares of `merge x merge` (1: row by row), which a projector may join."""
        ...

    @property
    def num_layers(self) -> int:
        """Blocks, which the names of its tensors count."""
        ...

    @property
    def levels(self) -> tuple[int, ...]:
        """Blocks whose outputs are handed out beside the last one's."""
        ...

    @property
    def initializer_range(self) -> float:
        """Standard deviation of freshly drawn weights."""
        ...

    @property
    def smallest(self) -> Grid:
        """The smallest image that it takes."""
        ...

    def parameter_count(self) -> int:
        """How many parameters it has."""
        ...

    def flops(self, grid: Grid) -> float:
        """Floating-point operations of one image's forward."""
        ...

    def faults(self, grid: Grid) -> str | None:
        """Why it cannot take an image of this grid, or None."""
        ...


class ProjectorConfig(Protocol):
    """What is asked of any projector's hyperparameters."""

    @property
    def hidden_size(self) -> int:
        """Width of what it hands to the language model."""
        ...

    @property
    def deep(self) -> int:
        """How many further features it makes for hidden states inside the language model (DeepStack)."""
        ...

    @property
    def initializer_range(self) -> float:
        """Standard deviation of freshly drawn weights."""
        ...

    def feature_grid(self, grid: Grid) -> Grid:
        """Frames, rows and columns of the features that an image of this grid becomes."""
        ...

    def parameter_count(self) -> int:
        """How many parameters it has."""
        ...

    def flops(self, grid: Grid) -> float:
        """Floating-point operations of one image's forward."""
        ...


@dataclass(frozen=True)
class TowerKind:
    """A kind of vision tower; entry-point group `loong.towers`.

    Its module maps `(patches [patches, patch_dim], grid_thw on the host)` to `TowerFeatures`, of all patches on every
    tensor rank.

    Attributes:
        name: what it is called.
        model_types: values of `model_type` in a `vision_config` that belong to it.
        config: a `vision_config` to its hyperparameters; raises `UserError` with every key it cannot serve.
        build: the module on the context's device, weights not drawn.
        rules: its parameters in terms of Hugging Face tensors, names without what stands before them in a model.
        shared: what of it the context's tensor ranks share, each by name and number; their degree divides all of them.
            None: its module does not share anything, and tensor ranks cannot have it in common.
    """

    name: str
    model_types: tuple[str, ...]
    config: Callable[[dict[str, Any]], Any]
    build: Callable[[Any, ParallelContext, torch.dtype], nn.Module]
    rules: Callable[[Any], list[Rule]]
    shared: Callable[[Any], dict[str, int]] | None = None


@dataclass(frozen=True)
class ProjectorKind:
    """A kind of projector; entry-point group `loong.projectors`.

    Its module maps `(TowerFeatures, grid_thw on the host)` to `ImageFeatures`.

    Attributes:
        name: what it is called.
        config: (its own part of a `config.json`, the tower's hyperparameters, the language model's width) to its
            hyperparameters; raises `UserError` where they do not fit each other.
        build: the module on the context's device, weights not drawn.
        rules: its parameters in terms of Hugging Face tensors, names without what stands before them in a model.
    """

    name: str
    config: Callable[[dict[str, Any], Any, int], Any]
    build: Callable[[Any, ParallelContext, torch.dtype], nn.Module]
    rules: Callable[[Any], list[Rule]]


@dataclass(frozen=True)
class LanguagePart:
    """The language model: a family of loong-llm and the `config.json` that it reads."""

    family: Family
    config: DecoderConfig
    hf_config: dict[str, Any]


class PositionRule(Protocol):
    """How tokens among images are numbered."""

    @property
    def axes(self) -> int:
        """1, or as many as the rotary embedding has axes."""
        ...

    def runs(self, grid: Grid, is_video: bool) -> Sequence[Grid]:
        """The stretches of placeholders in which an image or video stands in the text, each a grid of features."""
        ...

    def of_run(self, start: int, grid: Grid, seconds: float, is_video: bool) -> tuple[Any, int]:
        """Positions `[features, axes]` int64 (numpy) of one stretch that begins at `start`, and where text goes on."""
        ...


@dataclass(frozen=True)
class Meeting:
    """How features meet the text.

    Attributes:
        image_token: id of the token that each feature of an image takes the place of.
        video_token: the same of a video; where it is the same token, or None for a model that takes no videos.
        positions: how tokens are numbered.
        layout: how images and videos are written in a text, as words.
    """

    image_token: int
    video_token: int | None
    positions: PositionRule
    layout: PlaceholderLayout = field(default_factory=QwenLayout)

    @property
    def placeholders(self) -> tuple[int, ...]:
        """Every token that stands for a feature."""
        return tuple(dict.fromkeys(token for token in (self.image_token, self.video_token) if token is not None))


@dataclass(frozen=True)
class ModelParts:
    """A vision-language model before it is built."""

    tower_kind: TowerKind
    tower: TowerConfig
    projector_kind: ProjectorKind
    projector: ProjectorConfig
    language: LanguagePart
    meeting: Meeting

    def parameter_count(self) -> int:
        """How many parameters the model has, a tied table counted once."""
        return self.tower.parameter_count() + self.projector.parameter_count() + self.language.config.parameter_count()

    def image_flops(self, grid: Grid) -> float:
        """Floating-point operations of one image's forward through tower and projector."""
        return self.tower.flops(grid) + self.projector.flops(grid)
