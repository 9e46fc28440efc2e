"""What goes into a diffusion transformer besides latents: patches, timesteps, captions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PatchEmbedding(nn.Module):
    """A convolution whose stride is its kernel, on patches that are cut out already.

    Args:
        channels: of the latents.
        patch_size: frames, rows and columns of a patch.
        width: of the model.
        dtype: of the parameters.
    """

    def __init__(
        self, channels: int, patch_size: tuple[int, int, int], width: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, channels, *patch_size, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(width, device=device, dtype=dtype))

    def forward(self, patches: Tensor) -> Tensor:
        """`[tokens, channels x frames x rows x columns]` to `[tokens, width]` in the weight's dtype."""
        return F.linear(patches.to(self.weight.dtype), self.weight.flatten(1), self.bias)


class TwoLayers(nn.Module):
    """Linear, activation, linear: how timesteps (`silu`) and captions (`gelu_tanh`) come to the model's width."""

    def __init__(self, inputs: int, width: int, activation: str, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.linear_1 = nn.Linear(inputs, width, device=device, dtype=dtype)
        self.linear_2 = nn.Linear(width, width, device=device, dtype=dtype)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """`[rows, inputs]` to `[rows, width]` in the weights' dtype."""
        hidden = self.linear_1(x.to(self.linear_1.weight.dtype))
        hidden = F.silu(hidden) if self.activation == "silu" else F.gelu(hidden, approximate="tanh")
        return self.linear_2(hidden)


def sinusoids(timesteps: Tensor, width: int) -> Tensor:
    """Cosines, then sines, of a timestep at `width / 2` frequencies from 1 down to 1/10000.

    In float32 throughout, as the models of this field were trained (Vaswani et al. 2017, section 3.5).

    Args:
        timesteps: `[rows]`.
        width: even.

    Returns:
        `[rows, width]` float32.
    """
    half = width // 2
    exponents = -math.log(10000) * torch.arange(half, dtype=torch.float32, device=timesteps.device) / half
    angles = timesteps.float()[:, None] * torch.exp(exponents)[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def wide(dtype: torch.dtype) -> torch.dtype:
    """Float32, or float64 where the model is: what timesteps and modulation are computed in whatever the precision."""
    return torch.promote_types(dtype, torch.float32)
