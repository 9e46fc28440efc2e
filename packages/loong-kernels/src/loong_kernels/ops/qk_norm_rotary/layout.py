"""Where the heads are in a fused projection."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class HeadLayout:
    """Queries, then keys, then values: `heads` and twice `kv_heads` vectors of `head_dim`."""

    heads: int
    kv_heads: int
    head_dim: int

    @property
    def width(self) -> int:
        """Elements of the projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def split(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views of queries, keys and values, `[tokens, heads, head_dim]` each."""
        heads = qkv.unflatten(-1, (-1, self.head_dim))
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        return q, k, v
