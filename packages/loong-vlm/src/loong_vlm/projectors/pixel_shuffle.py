"""InternVL's projector: each square of patches is joined to one vector, normalised, and taken to the language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loong_llm.families.config_reader import ConfigReader
from loong_vlm.parts import Grid, ProjectorKind, TowerConfig
from loong_vlm.towers.block_config import ACTIVATION_NAMES, Activation

if TYPE_CHECKING:
    import torch
    from torch import nn

    from loong_core.checkpoint.weight_map import Rule
    from loong_core.parallel.context import ParallelContext

NORM_EPS = 1e-5


@dataclass(frozen=True)
class PixelShuffleConfig:
    """Hyperparameters.

    Attributes:
        width: of the tower's features.
        hidden_size: of the language model.
        side: patches along a side of a square (1 / `downsample_ratio`).
        tower_merge: squares in which the tower hands patches out; 1: row by row.
        activation: between the two layers.
        initializer_range: standard deviation of freshly drawn weights.
    """

    width: int
    hidden_size: int
    side: int
    tower_merge: int
    activation: Activation
    initializer_range: float
    deep: int = 0

    @property
    def joined(self) -> int:
        """Width of a joined square."""
        return self.width * self.side**2

    def feature_grid(self, grid: Grid) -> Grid:
        """One feature a square."""
        return grid[0], grid[1] // self.side, grid[2] // self.side

    def parameter_count(self) -> int:
        """How many parameters the projector has."""
        return 2 * self.joined + self.hidden_size * (self.joined + 1) + self.hidden_size * (self.hidden_size + 1)

    def flops(self, grid: Grid) -> float:
        """Operations of one image's forward."""
        frames, rows, columns = self.feature_grid(grid)
        return 2.0 * frames * rows * columns * self.hidden_size * (self.joined + self.hidden_size)


def _config(hf: dict[str, Any], tower: TowerConfig, hidden_size: int) -> PixelShuffleConfig:
    read = ConfigReader(hf, "pixel_shuffle projector")
    side = round(1 / read.number("downsample_ratio", 0.5))
    if tower.merge not in (1, side):
        read.fault(
            "downsample_ratio", f"joins {side} x {side} patches, this tower hands out {tower.merge} x {tower.merge}"
        )
    activation = read.choice("projector_hidden_act", *ACTIVATION_NAMES)
    read.finish()
    return PixelShuffleConfig(
        tower.width,
        hidden_size,
        side,
        tower.merge,
        activation,  # type: ignore[arg-type]
        tower.initializer_range,
    )


def _build(config: PixelShuffleConfig, context: ParallelContext, dtype: torch.dtype) -> nn.Module:
    from loong_vlm.projectors.pixel_shuffle_module import PixelShuffle

    return PixelShuffle(config, context, dtype)


def _rules(config: PixelShuffleConfig) -> list[Rule]:
    """Names as in transformers."""
    return named_rules(config, "layer_norm", "linear_1", "linear_2")


def named_rules(config: PixelShuffleConfig, norm: str, first: str, second: str) -> list[Rule]:
    """The projector's parameters under these names of its three layers."""
    from loong_core.checkpoint.weight_map import Rule, Span

    joined, hidden = config.joined, config.hidden_size
    return [
        Rule("norm.weight", Span(f"{norm}.weight", (joined,))),
        Rule("norm.bias", Span(f"{norm}.bias", (joined,))),
        Rule("first.weight", Span(f"{first}.weight", (hidden, joined))),
        Rule("first.bias", Span(f"{first}.bias", (hidden,))),
        Rule("second.weight", Span(f"{second}.weight", (hidden, hidden))),
        Rule("second.bias", Span(f"{second}.bias", (hidden,))),
    ]


PIXEL_SHUFFLE = ProjectorKind("pixel_shuffle", _config, _build, _rules)
