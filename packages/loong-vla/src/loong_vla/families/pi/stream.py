"""One stream of Gemma layers (https://arxiv.org/abs/2403.08295), in the two halves between which streams attend."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_vla.families.pi.config import GemmaSize

NORM_EPS = 1e-6


class GemmaNorm(nn.Module):
    """`x / rms(x) * (1 + weight)`, in float32 or wider; the gate is None."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Normalise `[batch, tokens, width]`."""
        return (_normalised(x) * (1 + _wide(self.weight))).to(x.dtype), None


class AdaptiveNorm(nn.Module):
    """adaRMS: scale and shift come from the condition, and a gate for what the block adds (arXiv:2504.16054)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Normalise `[batch, tokens, width]` by `[batch, width]`; the gate is `[batch, 1, width]`."""
        assert condition is not None
        scale, shift, gate = self.dense(condition)[:, None].chunk(3, dim=-1)
        return (_normalised(x) * (1 + _wide(scale)) + _wide(shift)).to(x.dtype), gate.to(x.dtype)


def make_norm(width: int, conditioned: bool) -> GemmaNorm | AdaptiveNorm:
    """The norm of a stream."""
    return AdaptiveNorm(width) if conditioned else GemmaNorm(width)


class StreamLayer(nn.Module):
    """A layer of one stream: what comes before attention, and what comes after.

    Args:
        size: of the stream.
        conditioned: whether its norms are adaptive.
    """

    def __init__(self, size: GemmaSize, conditioned: bool = False) -> None:
        super().__init__()
        self.size = size
        heads = size.heads + 2 * size.kv_heads
        self.norm1 = make_norm(size.width, conditioned)
        self.qkv = nn.Linear(size.width, heads * size.head_dim, bias=False)
        self.out = nn.Linear(size.heads * size.head_dim, size.width, bias=False)
        self.norm2 = make_norm(size.width, conditioned)
        self.gate_up = nn.Linear(size.width, 2 * size.mlp, bias=False)
        self.down = nn.Linear(size.mlp, size.width, bias=False)

    def before(
        self, x: Tensor, condition: Tensor | None, angles: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys (both rotated) and values, `[batch, tokens, heads, head_dim]`, and the gate."""
        size = self.size
        normed, gate = self.norm1(x, condition)
        heads = self.qkv(normed).unflatten(-1, (-1, size.head_dim))
        q, k, v = heads.split((size.heads, size.kv_heads, size.kv_heads), dim=2)
        return rotate(q, angles), rotate(k, angles), v, gate

    def after(self, x: Tensor, attended: Tensor, gate: Tensor | None, condition: Tensor | None) -> Tensor:
        """The stream after this layer, `[batch, tokens, width]`."""
        x = _gated(x, self.out(attended.flatten(2)), gate)
        normed, gate = self.norm2(x, condition)
        inner, up = self.gate_up(normed).chunk(2, dim=-1)
        return _gated(x, self.down(F.gelu(inner, approximate="tanh") * up), gate)


class KeysAndValues(nn.Module):
    """What is left of the prefix's last layer, of which nothing but keys and values is ever looked at."""

    def __init__(self, size: GemmaSize) -> None:
        super().__init__()
        self.size = size
        self.norm1 = GemmaNorm(size.width)
        self.kv = nn.Linear(size.width, 2 * size.kv_heads * size.head_dim, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        """Keys (rotated) and values, `[batch, tokens, kv_heads, head_dim]`."""
        normed, _ = self.norm1(x)
        k, v = self.kv(normed).unflatten(-1, (-1, self.size.head_dim)).chunk(2, dim=2)
        return rotate(k, angles), v


def rotate(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding with half-split pairing, in float32 or wider.

    Plain arithmetic, for the compiler to put together with what is around it.

    Args:
        x: `[batch, tokens, heads, head_dim]`.
        angles: `[2, batch or 1, tokens, 1, head_dim / 2]`, cosines and sines.
    """
    cos, sin = angles
    first, second = _wide(x).chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Softmax attention without order.

    Args:
        q: `[batch, queries, heads, head_dim]`.
        k, v: `[batch, keys, kv_heads, head_dim]`.
        mask: `[batch, keys]` bool, which keys there are; None for all.
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    grouped = q.shape[1] != k.shape[1]
    if mask is not None and grouped:  # kernels that take a mask want as many keys as queries; views cost nothing
        k, v = (each.repeat_interleave(q.shape[1] // each.shape[1], dim=1) for each in (k, v))
        grouped = False
    seen = None if mask is None else mask[:, None, None, :].expand(-1, 1, q.shape[2], -1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=grouped).transpose(1, 2)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _normalised(x: Tensor) -> Tensor:
    wide = _wide(x)
    return wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPS)


def _gated(x: Tensor, added: Tensor, gate: Tensor | None) -> Tensor:
    return x + added if gate is None else x + added * gate
