"""Layers of which each embodiment has its own. Only those of active embodiments are held."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class EmbodimentLinear(nn.Module):
    """`x W[embodiment] + b[embodiment]`; one product for all samples where one embodiment is active.

    Args:
        banks: active embodiments.
        inputs, outputs: widths.
    """

    def __init__(self, banks: int, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(banks, inputs, outputs))
        self.bias = nn.Parameter(torch.empty(banks, outputs))

    def forward(self, x: Tensor, embodiment: Tensor) -> Tensor:
        """`[batch, tokens, inputs]` to `[batch, tokens, outputs]`; `embodiment` is `[batch]`, among the active."""
        if self.weight.shape[0] == 1:
            return x @ self.weight[0] + self.bias[0]
        return torch.bmm(x, self.weight[embodiment]) + self.bias[embodiment][:, None]


class EmbodimentPerceptron(nn.Module):
    """Two such layers with a ReLU between them."""

    def __init__(self, banks: int, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layer1 = EmbodimentLinear(banks, inputs, hidden)
        self.layer2 = EmbodimentLinear(banks, hidden, outputs)

    def forward(self, x: Tensor, embodiment: Tensor) -> Tensor:
        """`[batch, tokens, inputs]` to `[batch, tokens, outputs]`."""
        return self.layer2(F.relu(self.layer1(x, embodiment)), embodiment)


class ActionEncoder(nn.Module):
    """Noisy actions and their time to tokens."""

    def __init__(self, banks: int, actions: int, width: int) -> None:
        super().__init__()
        self.layer1 = EmbodimentLinear(banks, actions, width)
        self.layer2 = EmbodimentLinear(banks, 2 * width, width)
        self.layer3 = EmbodimentLinear(banks, width, width)

    def forward(self, actions: Tensor, time: Tensor, embodiment: Tensor) -> Tensor:
        """`[batch, horizon, actions]` and `[batch]` whole times to `[batch, horizon, width]`."""
        encoded = self.layer1(actions, embodiment)
        told = sines_first(time, encoded.shape[-1]).to(encoded.dtype)[:, None].expand_as(encoded)
        return self.layer3(F.silu(self.layer2(torch.cat((encoded, told), -1), embodiment)), embodiment)


def sines_first(time: Tensor, width: int) -> Tensor:
    """Sines, then cosines of `time * 10000^(-i / (width / 2))`, `[batch, width]` float32."""
    half = width // 2
    step = torch.log(torch.tensor(10000.0, device=time.device)) / half
    exponent = -torch.arange(half, dtype=torch.float32, device=time.device) * step
    angles = time.float()[:, None] * exponent.exp()
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
