"""The hyperparameters that towers of patches and blocks share, as plain data; nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass

from loong_vlm.towers.block_config import VisionBlockConfig
from loong_vlm.towers.patch_shape import PatchShape


@dataclass(frozen=True, kw_only=True)
class BlockTowerConfig:
    """A tower that embeds patches and sends them through blocks of one kind.

    Attributes:
        block: every block's.
        depth: how many there are.
        patches: what a patch is.
        initializer_range: standard deviation of freshly drawn weights.
        levels: blocks whose outputs are handed out beside the last one's.
    """

    block: VisionBlockConfig
    depth: int
    patches: PatchShape
    initializer_range: float
    levels: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """Width of the features."""
        return self.block.width

    @property
    def patch_dim(self) -> int:
        """Numbers that describe a patch."""
        return self.patches.dim

    @property
    def merge(self) -> int:
        """Side of the squares in which patches come (1: row by row)."""
        return self.patches.merge

    @property
    def num_layers(self) -> int:
        """Blocks."""
        return self.depth


def shared_of_blocks(config: BlockTowerConfig) -> dict[str, int]:
    """What tensor ranks share of each block (`TowerKind.shared`)."""
    return {"attention heads": config.block.num_heads, "feed-forward width": config.block.intermediate_size}
