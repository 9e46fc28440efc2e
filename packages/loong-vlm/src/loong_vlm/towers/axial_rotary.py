"""Rotary position embedding of patches along two axes: half of the frequencies turn by the row, half by the column."""

from __future__ import annotations

import torch
from torch import Tensor


def axial_tables(rows_columns: Tensor, head_dim: int, theta: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of each patch's angles; frequencies and angles are float32, as in `loong_core.nn.rotary`.

    Args:
        rows_columns: `[patches, 2]` int64, on any device.
        head_dim: of the attention, a multiple of 4.
        theta: base of the wavelengths.
        dtype: the model's; float64 models get tables in float64, others in float32.

    Returns:
        Two `[patches, head_dim / 2]` tensors: the row's frequencies, then the column's.
    """
    exponents = torch.arange(0, head_dim // 2, 2, dtype=torch.float, device="cpu") / (head_dim // 2)
    frequencies = (1.0 / theta**exponents).to(rows_columns.device)
    angles = (rows_columns.float()[:, :, None] * frequencies).flatten(1)
    table = torch.promote_types(dtype, torch.float32)
    return angles.cos().to(table), angles.sin().to(table)
