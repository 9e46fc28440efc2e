"""Rotary position embedding of patches along two axes: half of the frequencies turn by the row, half by the column."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loong_vlm.towers.learnt_angle import LearntAngle


@dataclass(frozen=True, eq=False)
class Rotation:
    """By which angles queries and keys are turned.

    Attributes:
        cos: `[patches, head_dim / 2]`; no gradient flows into it.
        sin: as `cos`.
        learnt: the rows of these tables whose angles are a parameter.
    """

    cos: Tensor
    sin: Tensor
    learnt: LearntAngle | None = None


def axial_rotation(rows_columns: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> Rotation:
    """Each patch's rotation; frequencies and angles are float32, as in `loong_core.nn.rotary`.

    Args:
        rows_columns: `[patches, 2]` int64, on any device.
        head_dim: of the attention, a multiple of 4.
        theta: base of the wavelengths.
        dtype: the model's; float64 models get tables in float64, others in float32.

    Returns:
        tables of the row's frequencies, then the column's.
    """
    exponents = torch.arange(0, head_dim // 2, 2, dtype=torch.float, device="cpu") / (head_dim // 2)
    frequencies = (1.0 / theta**exponents).to(rows_columns.device)
    angles = (rows_columns.float()[:, :, None] * frequencies).flatten(1)
    table = torch.promote_types(dtype, torch.float32)
    return Rotation(angles.cos().to(table), angles.sin().to(table))
