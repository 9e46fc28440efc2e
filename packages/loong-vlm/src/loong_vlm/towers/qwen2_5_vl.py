"""The tower of Qwen2.5-VL (arXiv:2502.13923): RMSNorm, gated feed-forwards, attention in windows in most blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loong_llm.families.config_reader import ConfigReader
from loong_vlm.parts import Grid, TowerKind
from loong_vlm.towers.block_config import VisionBlockConfig
from loong_vlm.towers.block_tower_config import BlockTowerConfig, shared_of_blocks
from loong_vlm.towers.patch_shape import read_heads, read_patch_shape

if TYPE_CHECKING:
    import torch
    from torch import nn

    from loong_core.checkpoint.weight_map import Rule
    from loong_core.parallel.context import ParallelContext

ROTARY_THETA = 10000.0


@dataclass(frozen=True, kw_only=True)
class Qwen25TowerConfig(BlockTowerConfig):
    """Hyperparameters, named as in `vision_config`.

    Attributes:
        full_attention: numbers of those in which a patch sees its whole frame.
        window: side of a window of the others, in pixels.
    """

    full_attention: tuple[int, ...]
    window: int

    @property
    def window_side(self) -> int:
        """Squares along a side of a window."""
        return self.window // self.merge // self.patches.size

    @property
    def smallest(self) -> Grid:
        """A square."""
        return 1, self.merge, self.merge

    def parameter_count(self) -> int:
        """How many parameters the tower has."""
        return self.patch_dim * self.width + self.depth * self.block.parameter_count()

    def flops(self, grid: Grid) -> float:
        """Operations of one image's forward."""
        frames, height, width = grid
        patches, side = frames * height * width, self.window_side * self.merge
        whole, windows = [height * width] * frames, [side * side] * max(1, round(patches / side**2))
        full = len(self.full_attention)
        inner = full * self.block.flops(whole) + (self.depth - full) * self.block.flops(windows)
        return inner + 2.0 * patches * self.patch_dim * self.width

    def faults(self, grid: Grid) -> str | None:
        """Grids must be whole squares."""
        return self.patches.faults(grid)


def _config(hf: dict[str, Any]) -> Qwen25TowerConfig:
    read = ConfigReader(hf, "qwen2_5_vl tower")
    width = read.integer("hidden_size")
    heads = read_heads(read, width)
    read.only("hidden_act", "silu")
    block = VisionBlockConfig(width, heads, read.integer("intermediate_size"), "silu", gated=True, norm="rms_norm")
    config = Qwen25TowerConfig(
        block=block,
        depth=read.integer("depth"),
        full_attention=tuple(hf.get("fullatt_block_indexes") or ()),
        window=read.integer("window_size", 112),
        patches=read_patch_shape(read, patch_size=14),
        initializer_range=read.number("initializer_range", 0.02),
    )
    if config.window_side < 1:
        square = config.merge * config.patches.size
        read.fault("window_size", f"is {config.window} pixels, less than a square of {square}")
    read.finish()
    return config


def _build(config: Qwen25TowerConfig, context: ParallelContext, dtype: torch.dtype) -> nn.Module:
    from loong_vlm.towers.qwen2_5_vl_module import Qwen25Tower

    return Qwen25Tower(config, context, dtype)


def _rules(config: Qwen25TowerConfig) -> list[Rule]:
    from loong_core.checkpoint.weight_map import Rule, Span
    from loong_vlm.towers.block_names import BlockNames, block_rules

    names = BlockNames(
        attention_norm="norm1", qkv=("attn.qkv",), output="attn.proj", feed_forward_norm="norm2",
        up="mlp.up_proj", down="mlp.down_proj", gate="mlp.gate_proj",
    )  # fmt: skip
    weight = (config.width, *config.patches.kernel)
    return [
        Rule("patch_embedding.weight", Span("patch_embed.proj.weight", weight)),
        *block_rules(config.block, names, config.depth),
    ]


QWEN2_5_VL_TOWER = TowerKind(
    "qwen2_5_vl", ("qwen2_5_vl", "qwen2_5_vl_vision"), _config, _build, _rules, shared_of_blocks
)
