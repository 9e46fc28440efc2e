"""RICE-ViT (arXiv:2507.20025) as in LLaVA-OneVision-1.5: a class token a frame, whose rotary position is learnt.

Patches turn by their row and column; frames begin with a class token, which attention sees and which is not handed out;
layer normalisation before the blocks and none behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
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
class RiceConfig(BlockTowerConfig):
    """Hyperparameters."""

    @property
    def angles(self) -> int:
        """By how many angles a token's pairs of dimensions turn."""
        return self.block.head_dim // 2

    @property
    def smallest(self) -> Grid:
        """A square."""
        return 1, self.merge, self.merge

    def parameter_count(self) -> int:
        """How many parameters the tower has."""
        embedding = (self.patch_dim + 1) * self.width + self.angles
        return embedding + 2 * self.width + self.depth * self.block.parameter_count()

    def flops(self, grid: Grid) -> float:
        """Operations of one image's forward."""
        frames, height, width = grid
        embedding = 2.0 * frames * height * width * self.patch_dim * self.width
        return embedding + self.depth * self.block.flops([height * width + 1] * frames)

    def faults(self, grid: Grid) -> str | None:
        """Grids must be whole squares."""
        return self.patches.faults(grid)


def _config(hf: dict[str, Any]) -> RiceConfig:
    read = ConfigReader(hf, "rice_vit tower")
    width = read.integer("hidden_size" if "hidden_size" in hf else "embed_dim")
    heads = read_heads(read, width)
    read.only("embed_dim", width, None)
    read.only("temporal_patch_size", 1)
    activation = read.choice("hidden_act", *ACTIVATION_NAMES)
    config = RiceConfig(
        block=VisionBlockConfig(
            width,
            heads,
            read.integer("intermediate_size"),
            activation,  # type: ignore[arg-type]
            norm_eps=read.number("layer_norm_eps", 1e-5),
        ),
        depth=read.integer("depth"),
        patches=read_patch_shape(read, patch_size=14, frames=0),
        initializer_range=read.number("initializer_range", 0.02),
    )
    read.finish()
    return config


def _build(config: RiceConfig, context: ParallelContext, dtype: torch.dtype) -> nn.Module:
    from loong_vlm.towers.rice_module import Rice

    return Rice(config, context, dtype)


def _rules(config: RiceConfig) -> list[Rule]:
    from loong_core.checkpoint.weight_map import Rule, Span
    from loong_vlm.towers.block_names import BlockNames, block_rules

    names = BlockNames(
        attention_norm="norm1", qkv=("attn.qkv",), output="attn.proj", feed_forward_norm="norm2", up="mlp.fc1",
        down="mlp.fc2",
    )  # fmt: skip
    width = config.width
    return [
        Rule("class_token", Span("class_embedding", (width,))),
        Rule("class_angles", Span("class_pos_emb", (1, config.angles))),
        Rule("patch_embedding.weight", Span("patch_embed.proj.weight", (width, *config.patches.kernel))),
        Rule("first_norm.weight", Span("pre_layernorm.weight", (width,))),
        Rule("first_norm.bias", Span("pre_layernorm.bias", (width,))),
        *block_rules(config.block, names, config.depth),
    ]


RICE = TowerKind("rice", ("rice_vit",), _config, _build, _rules, shared_of_blocks)
