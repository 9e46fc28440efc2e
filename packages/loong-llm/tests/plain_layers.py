"""Layers as papers write them, for families that transformers has no class of."""

import torch


def norm(x, weight):
    """RMSNorm."""
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt() * weight


def rotate(x, theta=10000):
    """Pairs (x[i], x[i + half]) of `[sequence, heads, head_dim]` turned by position * theta^(-i / half)."""
    half = x.shape[-1] // 2
    frequencies = 1 / theta ** (torch.arange(0, 2 * half, 2).float() / (2 * half))
    angles = (torch.arange(x.shape[0]).float()[:, None] * frequencies)[:, None]
    cos, sin = angles.cos().double(), angles.sin().double()
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


def causal_attention(q, k, v, theta=10000):
    """Attention with rotary positions over `[sequence, heads, head_dim]`; keys and values may have fewer heads."""
    length, heads, size = q.shape
    k, v = (part.repeat_interleave(heads // k.shape[1], dim=1) for part in (rotate(k, theta), v))
    scores = torch.einsum("qhd,khd->hqk", rotate(q, theta), k) / size**0.5
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), float("-inf"))
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).reshape(length, heads * size)
