"""GR00T N1.6's action head written plainly, from its description: masks over all keys, banks by sample, no fusion."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from loong_vla.families.groot.head import GrootHead


def plain_n16(head: GrootHead, given: dict[str, Tensor]) -> Tensor:
    """N1.6's velocity, from its description: LayerNorm of what was seen, masks over all keys, banks by sample."""
    weights, config = dict(head.named_parameters()), head.config

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def bank(name: str, x: Tensor) -> Tensor:
        e = given["embodiment"]
        return torch.einsum("bti,bio->bto", x, weights[f"{name}.weight"][e]) + weights[f"{name}.bias"][e][:, None]

    def heads(x: Tensor) -> Tensor:
        return x.unflatten(-1, (config.num_heads, config.head_dim)).transpose(1, 2)

    seen = F.layer_norm(given["features"], (config.vl_width,), weights["vl_norm.weight"], weights["vl_norm.bias"])
    time = given["time"][:, None, None]
    whole = (given["time"] * 1000).long().float()
    noisy = (1 - time) * given["noise"] + time * given["actions"]
    half = torch.arange(config.width // 2, dtype=torch.float32)
    angles = whole[:, None] * torch.exp(-half * (torch.log(torch.tensor(10000.0)) / (config.width // 2)))
    told = torch.cat((angles.sin(), angles.cos()), -1).double()[:, None].expand(-1, noisy.shape[1], -1)
    x = bank("action_encoder.layer2", torch.cat((bank("action_encoder.layer1", noisy), told), -1))
    x = bank("action_encoder.layer3", x * x.sigmoid()) + weights["positions.weight"][: noisy.shape[1]]
    state = bank("state_encoder.layer2", bank("state_encoder.layer1", given["state"]).relu())
    x = torch.cat((state, x), 1)
    quarter = torch.arange(128, dtype=torch.float32)
    angles = whole[:, None] * torch.exp(-torch.log(torch.tensor(10000.0)).item() * quarter / 127)
    c = linear("time2", F.silu(linear("time1", torch.cat((angles.cos(), angles.sin()), -1).double())))
    for number in range(config.num_layers):
        block = f"layers.{number}"
        scale, shift = linear(f"{block}.modulation", F.silu(c))[:, None].chunk(2, -1)
        normed = F.layer_norm(x, (config.width,), eps=1e-5) * (1 + scale) + shift
        if number % 2:
            q, k, v = linear(f"{block}.qkv", normed).chunk(3, -1)
            mask = torch.ones(x.shape[0], x.shape[1], dtype=torch.bool)
        else:
            reads_text = number % 4 == 0
            kind, blocks = ("text_kv", config.text_blocks) if reads_text else ("image_kv", config.image_blocks)
            k, v = linear(kind, seen).chunk(2 * len(blocks), -1)[2 * blocks.index(number) :][:2]
            q = linear(f"{block}.q", normed)
            mask = given["attention_mask"] & (~given["image_mask"] if reads_text else given["image_mask"])
        scores = heads(q) @ heads(k).transpose(-1, -2) * config.head_dim**-0.5
        attended = scores.masked_fill(~mask[:, None, None], float("-inf")).softmax(-1) @ heads(v)
        x = x + linear(f"{block}.out", attended.transpose(1, 2).flatten(2))
        inner = linear(f"{block}.up", F.layer_norm(x, (config.width,), eps=1e-5))
        x = x + linear(f"{block}.down", F.gelu(inner, approximate="tanh"))
    shift, scale = linear("out_modulation", F.silu(c))[:, None].chunk(2, -1)
    x = linear("out", F.layer_norm(x, (config.width,), eps=1e-6) * (1 + scale) + shift)
    return bank("action_decoder.layer2", bank("action_decoder.layer1", x).relu())[:, 1:]
