"""InternViT (arXiv:2312.14238, 300M and 6B): tiles of one size, a class token, learnt positions, scaled residuals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loong_llm.families.config_reader import ConfigReader
from loong_vlm.parts import Grid, TowerKind
from loong_vlm.towers.block_config import ACTIVATION_NAMES, VisionBlockConfig
from loong_vlm.towers.block_tower_config import BlockTowerConfig, shared_of_blocks
from loong_vlm.towers.patch_shape import PatchShape

if TYPE_CHECKING:
    import torch
    from torch import nn

    from loong_core.checkpoint.weight_map import Rule
    from loong_core.parallel.context import ParallelContext
    from loong_vlm.towers.block_names import BlockNames


@dataclass(frozen=True, kw_only=True)
class InternViTConfig(BlockTowerConfig):
    """Hyperparameters.

    Attributes:
        rows, columns: patches of a tile.
    """

    rows: int
    columns: int

    @property
    def places(self) -> int:
        """Positions of a tile: the class token's and the patches'."""
        return self.rows * self.columns + 1

    @property
    def smallest(self) -> Grid:
        """A tile."""
        return 1, self.rows, self.columns

    def parameter_count(self) -> int:
        """How many parameters the tower has."""
        embedding = (self.patch_dim + 1 + 1 + self.places) * self.width
        return embedding + self.depth * self.block.parameter_count()

    def flops(self, grid: Grid) -> float:
        """Operations of one image's forward."""
        frames, height, width = grid
        embedding = 2.0 * frames * height * width * self.patch_dim * self.width
        return embedding + self.depth * self.block.flops([height * width + 1] * frames)

    def faults(self, grid: Grid) -> str | None:
        """Every frame is a tile."""
        frames, height, width = grid
        if frames < 1 or (height, width) != (self.rows, self.columns):
            return (
                f"its grid is {frames} x {height} x {width} patches, this tower takes tiles of {self.rows} x "
                f"{self.columns}"
            )
        return None


def _config(hf: dict[str, Any]) -> InternViTConfig:
    read = ConfigReader(hf, "internvl tower")
    width, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    if width % heads:
        read.fault("num_attention_heads", f"{heads} does not divide the width of {width}")
    of_transformers = hf.get("model_type") == "internvl_vision"
    scale = "layer_scale_init_value" if of_transformers else "initializer_factor"
    read.number(scale, 0.1)  # of freshly drawn weights only, where 1 does as well
    for key in ("hidden_dropout_prob", "attention_dropout", "projection_dropout", "dropout"):
        read.only(key, 0.0, None)
    for key, value in (
        ("use_absolute_position_embeddings", True),
        ("use_mask_token", False),
        ("use_mean_pooling", True),
    ):
        read.only(key, value, None)
    height, columns = _sides(read, "image_size", 448)
    patch, patch_columns = _sides(read, "patch_size", 14)
    if patch != patch_columns or height % patch or columns % patch:
        read.fault("patch_size", f"{patch} x {patch_columns} does not divide tiles of {height} x {columns} in squares")
    config = InternViTConfig(
        block=VisionBlockConfig(
            width,
            heads,
            read.integer("intermediate_size"),
            read.choice("hidden_act", *ACTIVATION_NAMES),  # type: ignore[arg-type]
            norm=read.choice("norm_type", "layer_norm", "rms_norm"),  # type: ignore[arg-type]
            norm_eps=read.number("layer_norm_eps", 1e-6),
            qkv_bias=read.flag("attention_bias" if of_transformers else "qkv_bias", False),
            qk_norm=read.flag("use_qk_norm" if of_transformers else "qk_normalization", False),
            layer_scale=True,
        ),
        depth=read.integer("num_hidden_layers"),
        rows=height // max(patch, 1),
        columns=columns // max(patch, 1),
        patches=PatchShape(patch, 0, read.integer("num_channels", 3), merge=1),
        initializer_range=read.number("initializer_range", 0.02),
    )
    read.finish()
    return config


def _sides(read: ConfigReader, key: str, default: int) -> tuple[int, int]:
    """Rows and columns, of a key that is one number or two."""
    value = read.hf.get(key, default)
    sides = list(value) if isinstance(value, list | tuple) else [value, value]
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        read.fault(key, f"is {value!r}", "a positive integer is wanted, or two")
        return default, default
    return sides[0], sides[1]


def _build(config: InternViTConfig, context: ParallelContext, dtype: torch.dtype) -> nn.Module:
    from loong_vlm.towers.intern_vit_module import InternViT

    return InternViT(config, context, dtype)


def _rules(config: InternViTConfig) -> list[Rule]:
    """Names as in transformers."""
    from loong_vlm.towers.block_names import BlockNames

    names = BlockNames(
        attention_norm="layernorm_before", qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        output="attention.projection_layer", feed_forward_norm="layernorm_after", up="mlp.fc1", down="mlp.fc2",
        qk_norm=("attention.q_norm", "attention.k_norm"), scales=("lambda_1", "lambda_2"),
        block="encoder.layer.{layer}.",
    )  # fmt: skip
    return _rules_named(config, names, "cls_token", "position_embeddings", "patch_embeddings.projection")


def chat_rules(config: InternViTConfig) -> list[Rule]:
    """Names as in the first InternVL files (`internvl_chat`)."""
    from loong_vlm.towers.block_names import BlockNames

    names = BlockNames(
        attention_norm="norm1", qkv=("attn.qkv",), output="attn.proj", feed_forward_norm="norm2", up="mlp.fc1",
        down="mlp.fc2", qk_norm=("attn.q_norm", "attn.k_norm"), scales=("ls1", "ls2"), block="encoder.layers.{layer}.",
    )  # fmt: skip
    return _rules_named(config, names, "class_embedding", "position_embedding", "patch_embedding")


def _rules_named(config: InternViTConfig, names: BlockNames, token: str, positions: str, patch: str) -> list[Rule]:
    from loong_core.checkpoint.weight_map import Rule, Span
    from loong_vlm.towers.block_names import block_rules

    width = config.width
    return [
        Rule("class_token", Span(f"embeddings.{token}", (1, 1, width))),
        Rule("positions", Span(f"embeddings.{positions}", (1, config.places, width))),
        Rule("patch_embedding.weight", Span(f"embeddings.{patch}.weight", (width, *config.patches.kernel))),
        Rule("patch_embedding.bias", Span(f"embeddings.{patch}.bias", (width,))),
        *block_rules(config.block, names, config.depth),
    ]


INTERN_VIT = TowerKind("intern_vit", ("internvl_vision", "intern_vit_6b"), _config, _build, _rules, shared_of_blocks)
