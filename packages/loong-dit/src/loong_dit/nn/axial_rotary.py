"""Rotary angles of patches in frames, rows and columns: each axis turns its own part of a head."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def axial_rotation(
    positions: Tensor, axes: Sequence[int], theta: float = 10000.0, *, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """Cosines and sines of every token's angles, axis after axis.

    Args:
        positions: `[tokens, axes]` integers, which may be negative.
        axes: how many elements of a head each axis turns, all even.
        theta: base of the frequencies, `theta^(-2 i / elements)`.
        dtype: what angles are computed in; each family was trained with its own.

    Returns:
        two tensors `[tokens, head_dim / 2]` float32.
    """
    angles = []
    for axis, elements in enumerate(axes):
        powers = torch.arange(0, elements, 2, dtype=dtype, device=positions.device) / elements
        angles.append(positions[:, axis, None].to(dtype) * (1.0 / theta**powers))
    joined = torch.cat(angles, dim=-1)
    return joined.cos().float(), joined.sin().float()
