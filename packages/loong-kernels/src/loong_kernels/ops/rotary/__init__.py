"""Rotary position embedding (Su et al. 2021, https://arxiv.org/abs/2104.09864), half-split pairing."""

from __future__ import annotations

from torch import Tensor

from loong_kernels.ops.rotary.reference import rotary_reference


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by their positions' angles.

    Pair `i` of a head is `(x[i], x[i + rotary_dim/2])` (the half-split pairing of transformers' `rotate_half`);
    elements from `rotary_dim` on pass through.

    Args:
        q: `[tokens, heads, head_dim]`.
        k: `[tokens, kv_heads, head_dim]`.
        cos: `[tokens, rotary_dim/2]`, best in float32; no gradient flows into it.
        sin: as `cos`.

    Returns:
        The rotated `(q, k)`, new tensors in the dtypes of `q` and `k`; the arithmetic is float32 (float64 for float64).
    """
    return rotary_reference(q, k, cos.detach(), sin.detach())
