"""Qwen-like mergers: each square of patches is joined to one vector, and two layers take it to the language model.

Those of Qwen2.5-VL normalise by root mean square; those of Qwen3-VL and LLaVA-OneVision-1.5 by layer normalisation,
and Qwen3-VL has further ones for the levels of its tower, which normalise after joining.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from loong_core.errors import UserError
from loong_vlm.parts import Grid, ProjectorKind, TowerConfig

if TYPE_CHECKING:
    import torch
    from torch import nn

    from loong_core.checkpoint.weight_map import Rule
    from loong_core.parallel.context import ParallelContext


@dataclass(frozen=True)
class PatchMergerConfig:
    """Hyperparameters.

    Attributes:
        width: of the tower's features.
        hidden_size: of the language model.
        merge: side of a square, in patches.
        norm: RMSNorm or layer normalisation.
        norm_eps: its epsilon.
        deep: mergers for the tower's levels.
        initializer_range: standard deviation of freshly drawn weights.
    """

    width: int
    hidden_size: int
    merge: int
    norm: Literal["layer_norm", "rms_norm"]
    norm_eps: float
    deep: int
    initializer_range: float

    @property
    def joined(self) -> int:
        """Width of a joined square."""
        return self.width * self.merge**2

    def feature_grid(self, grid: Grid) -> Grid:
        """One feature a square."""
        return grid[0], grid[1] // self.merge, grid[2] // self.merge

    def parameter_count(self) -> int:
        """How many parameters the mergers have."""
        kinds = 1 if self.norm == "rms_norm" else 2
        norms = kinds * (self.width + self.deep * self.joined)
        matrices = self.joined * (self.joined + 1) + self.hidden_size * (self.joined + 1)
        return norms + (1 + self.deep) * matrices

    def flops(self, grid: Grid) -> float:
        """Operations of one image's forward."""
        frames, rows, columns = self.feature_grid(grid)
        return 2.0 * (1 + self.deep) * frames * rows * columns * self.joined * (self.joined + self.hidden_size)


def _make_config(norm: Literal["layer_norm", "rms_norm"], eps: float) -> Any:
    def config(hf: dict[str, Any], tower: TowerConfig, hidden_size: int) -> PatchMergerConfig:
        out = hf.get("out_hidden_size", hf.get("text_hidden_size", hidden_size))
        if out != hidden_size:
            raise UserError(
                f"the projector makes features of width {out}, the language model is {hidden_size} wide; parts fit "
                "together if vision_config.out_hidden_size is the language model's hidden_size"
            )
        if tower.merge < 2:
            raise UserError(
                "a patch merger joins squares of patches, but this tower hands patches out row by row; give it a "
                "pixel_shuffle projector"
            )
        own_eps = float(hf.get("layer_norm_eps", eps))
        return PatchMergerConfig(
            tower.width, hidden_size, tower.merge, norm, own_eps, len(tower.levels), tower.initializer_range
        )

    return config


def _build(config: PatchMergerConfig, context: ParallelContext, dtype: torch.dtype) -> nn.Module:
    from loong_vlm.projectors.patch_merger_module import PatchMerger

    return PatchMerger(config, context, dtype)


def _names(
    config: PatchMergerConfig, norm: str, first: str, second: str, deep: str, main: str = "merger."
) -> list[Rule]:
    from loong_core.checkpoint.weight_map import Rule, Span

    joined, hidden = config.joined, config.hidden_size
    kinds = ("weight",) if config.norm == "rms_norm" else ("weight", "bias")

    def merger(ours: str, theirs: str, width: int) -> list[Rule]:
        rules = [Rule(f"{ours}norm.{kind}", Span(f"{theirs}{norm}.{kind}", (width,))) for kind in kinds]
        for our, their, outputs in (("first", first, joined), ("second", second, hidden)):
            rules += [
                Rule(f"{ours}{our}.weight", Span(f"{theirs}{their}.weight", (outputs, joined))),
                Rule(f"{ours}{our}.bias", Span(f"{theirs}{their}.bias", (outputs,))),
            ]
        return rules

    rules = merger("", main, config.width)
    for number in range(config.deep):
        rules += merger(f"deep.{number}.", f"{deep}{number}.", joined)
    return rules


def _qwen2_5_rules(config: PatchMergerConfig) -> list[Rule]:
    return _names(config, "ln_q", "mlp.0", "mlp.2", "deepstack_merger_list.")


def _qwen3_rules(config: PatchMergerConfig) -> list[Rule]:
    return _names(config, "norm", "linear_fc1", "linear_fc2", "deepstack_merger_list.")


QWEN2_5_VL_MERGER = ProjectorKind("qwen2_5_vl_merger", _make_config("rms_norm", 1e-6), _build, _qwen2_5_rules)
QWEN3_VL_MERGER = ProjectorKind("qwen3_vl_merger", _make_config("layer_norm", 1e-6), _build, _qwen3_rules)
RICE_MERGER = ProjectorKind("rice_merger", _make_config("layer_norm", 1e-5), _build, _qwen2_5_rules)
