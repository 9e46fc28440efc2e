"""Rotary position embedding: the tables of cosines and sines that `loong_kernels.rotary` applies.

Frequencies and angles are computed in float32 on the host, in the order of operations of transformers, because that is
what published checkpoints were trained with: another rounding of the angle shows at long positions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from loong_core.nn.decoder_config import LinearScaling, Llama3Scaling, RotaryConfig


def inverse_frequencies(config: RotaryConfig) -> Tensor:
    """Radians per position, `[dim / 2]` float32: `theta^(-2i / dim)`, stretched as `config.scaling` says."""
    exponents = torch.arange(0, config.dim, 2, dtype=torch.int64, device="cpu").float() / config.dim
    frequencies = 1.0 / (config.theta**exponents)
    match config.scaling:
        case None:
            return frequencies
        case LinearScaling(factor):
            return frequencies / factor
        case Llama3Scaling():
            return _llama3(frequencies, config.scaling)


def _llama3(frequencies: Tensor, scaling: Llama3Scaling) -> Tensor:
    """Stretch the long wavelengths of `frequencies`, keep the short ones, and interpolate between."""
    original = scaling.original_max_position_embeddings
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > original / low, frequencies / scaling.factor, frequencies)
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * stretched / scaling.factor + smooth * stretched
    between = (wavelengths <= original / low) & (wavelengths >= original / high)
    return torch.where(between, blended, stretched)


def frequency_axes(config: RotaryConfig) -> Tensor | None:
    """Which axis of the positions each frequency turns by, `[dim / 2]` int64 on the host; None for a single axis."""
    if not config.sections:
        return None
    if not config.interleaved:
        numbers = torch.arange(len(config.sections), device="cpu")
        return torch.repeat_interleave(numbers, torch.tensor(config.sections, device="cpu"))
    axes = torch.zeros(config.dim // 2, dtype=torch.int64, device="cpu")
    for axis, count in enumerate(config.sections[1:], start=1):
        axes[axis : count * len(config.sections) : len(config.sections)] = axis
    return axes


class Rotary:
    """Tables of one rotary configuration.

    No module and no buffer: a model that is cast to bfloat16 must keep its frequencies in float32.
    """

    def __init__(self, config: RotaryConfig) -> None:
        self.frequencies = inverse_frequencies(config)
        self.axes = frequency_axes(config)

    def tables(self, position_ids: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each position's angles.

        Args:
            position_ids: `[tokens]` int64, or `[tokens, axes]`; along several axes with one position, the same on all.
            dtype: the model's; float64 models get the float32 angles' tables in float64, others float32 tables.

        Returns:
            Two `[tokens, dim / 2]` tensors.
        """
        if self.frequencies.device != position_ids.device:
            self.frequencies = self.frequencies.to(position_ids.device)
            self.axes = None if self.axes is None else self.axes.to(position_ids.device)
        if position_ids.ndim == 1:
            positions = position_ids[:, None]
        elif self.axes is not None:
            positions = position_ids[:, self.axes]
        else:
            raise ValueError(f"positions along {position_ids.shape[1]} axes for a rotary embedding of one axis")
        angles = positions.float() * self.frequencies
        table_dtype = torch.promote_types(dtype, torch.float32)
        return angles.cos().to(table_dtype), angles.sin().to(table_dtype)
