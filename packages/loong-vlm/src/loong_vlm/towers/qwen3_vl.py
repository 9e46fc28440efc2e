"""The tower of Qwen3-VL (arXiv:2511.21631): layer normalisation, a learnt table of positions, levels handed out."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING, Any

from loong_llm.families.config_reader import ConfigReader
from loong_vlm.parts import Grid, TowerKind
from loong_vlm.towers.block_config import ACTIVATION_NAMES, VisionBlockConfig
from loong_vlm.towers.block_tower_config import BlockTowerConfig, shared_of_blocks
from loong_vlm.towers.patch_shape import read_heads, read_patch_shape

if TYPE_CHECKING:
    import torch
    from torch import nn

    from loong_core.checkpoint.weight_map import Rule
    from loong_core.parallel.context import ParallelContext

ROTARY_THETA = 10000.0


@dataclass(frozen=True, kw_only=True)
class Qwen3TowerConfig(BlockTowerConfig):
    """Hyperparameters; `levels` is `deepstack_visual_indexes`.

    Attributes:
        positions: entries of the table of positions, a square number; it is stretched over an image's grid.
    """

    positions: int

    @property
    def smallest(self) -> Grid:
        """A square."""
        return 1, self.merge, self.merge

    def parameter_count(self) -> int:
        """How many parameters the tower has."""
        embedding = (self.patch_dim + 1 + self.positions) * self.width
        return embedding + self.depth * self.block.parameter_count()

    def flops(self, grid: Grid) -> float:
        """Operations of one image's forward."""
        frames, height, width = grid
        embedding = 2.0 * frames * height * width * self.patch_dim * self.width
        return embedding + self.depth * self.block.flops([height * width] * frames)

    def faults(self, grid: Grid) -> str | None:
        """Grids must be whole squares."""
        return self.patches.faults(grid)


def _config(hf: dict[str, Any]) -> Qwen3TowerConfig:
    read = ConfigReader(hf, "qwen3_vl tower")
    width = read.integer("hidden_size")
    heads = read_heads(read, width)
    activation = read.choice("hidden_act", "gelu_pytorch_tanh", *ACTIVATION_NAMES)
    depth, positions = read.integer("depth"), read.integer("num_position_embeddings")
    levels = tuple(hf.get("deepstack_visual_indexes") or ())
    if any(not isinstance(level, int) or not 0 <= level < depth for level in levels):
        read.fault("deepstack_visual_indexes", f"is {list(levels)}, of {depth} blocks")
    if isqrt(positions) ** 2 != positions:
        read.fault("num_position_embeddings", f"is {positions}, not a square number")
    config = Qwen3TowerConfig(
        block=VisionBlockConfig(width, heads, read.integer("intermediate_size"), activation),  # type: ignore[arg-type]
        depth=depth,
        levels=levels,
        positions=positions,
        patches=read_patch_shape(read, patch_size=16),
        initializer_range=read.number("initializer_range", 0.02),
    )
    read.finish()
    return config


def _build(config: Qwen3TowerConfig, context: ParallelContext, dtype: torch.dtype) -> nn.Module:
    from loong_vlm.towers.qwen3_vl_module import Qwen3Tower

    return Qwen3Tower(config, context, dtype)


def _rules(config: Qwen3TowerConfig) -> list[Rule]:
    from loong_core.checkpoint.weight_map import Rule, Span
    from loong_vlm.towers.block_names import BlockNames, block_rules

    names = BlockNames(
        attention_norm="norm1", qkv=("attn.qkv",), output="attn.proj", feed_forward_norm="norm2",
        up="mlp.linear_fc1", down="mlp.linear_fc2",
    )  # fmt: skip
    return [
        Rule("patch_embedding.weight", Span("patch_embed.proj.weight", (config.width, *config.patches.kernel))),
        Rule("patch_embedding.bias", Span("patch_embed.proj.bias", (config.width,))),
        Rule("positions", Span("pos_embed.weight", (config.positions, config.width))),
        *block_rules(config.block, names, config.depth),
    ]


QWEN3_VL_TOWER = TowerKind(
    "qwen3_vl",
    ("qwen3_vl", "qwen3_vl_vision", "qwen3_vl_moe", "qwen3_vl_moe_vision"),
    _config,
    _build,
    _rules,
    shared_of_blocks,
)
