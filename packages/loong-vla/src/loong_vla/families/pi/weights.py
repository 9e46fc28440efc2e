"""What a Pi policy's parameters are called in lerobot's and openpi's files, and fresh values for them.

Both keep one model in one `model.safetensors`; openpi's names lack lerobot's leading `model.`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import nn

from loong_core.checkpoint.weight_map import Rule, Span, WeightMap
from loong_core.nn.initialize import initialize
from loong_core.parallel.context import ParallelContext
from loong_vla.families.pi.config import GemmaSize, PiConfig
from loong_vlm.towers.siglip import SiglipConfig, siglip_rules

KeyLayout = Literal["lerobot", "openpi"]
PREFIX = {"lerobot": "model.", "openpi": ""}

_PALIGEMMA = "paligemma_with_expert.paligemma."
_LANGUAGE = f"{_PALIGEMMA}model.language_model."
_EXPERT = "paligemma_with_expert.gemma_expert.model."
HEAD = f"{_PALIGEMMA}lm_head.weight"
"""The text embedding as files name it that hold it once; lerobot and openpi then fill the table from it."""
TABLE = f"{_LANGUAGE}embed_tokens.weight"
"""The text embedding where a file holds it beside the head, which then means nothing."""
EXPERT_HEAD = "paligemma_with_expert.gemma_expert.lm_head.weight"


def pi_weight_map(config: PiConfig, keys: KeyLayout = "lerobot", table: str = HEAD) -> WeightMap:
    """The policy's parameters in terms of a file's tensors.

    Args:
        config: the policy.
        keys: whose names.
        table: which of its two names the text embedding goes by.
    """
    return WeightMap(_rules(config, PREFIX[keys], table))


def idle_tensors(config: PiConfig, keys: KeyLayout = "lerobot") -> dict[str, tuple[int, ...]]:
    """Name and shape of tensors that files hold and no action depends on; lerobot wants them there.

    They are the rest of the prefix's last layer, the prefix's final norm, and the expert's head.
    """
    size, last = config.sizes.language, config.sizes.language.depth - 1
    layer = f"{_LANGUAGE}layers.{last}."
    heads = size.heads * size.head_dim
    found = {
        f"{layer}self_attn.q_proj.weight": (heads, size.width),
        f"{layer}self_attn.o_proj.weight": (size.width, heads),
        f"{layer}mlp.gate_proj.weight": (size.mlp, size.width),
        f"{layer}mlp.up_proj.weight": (size.mlp, size.width),
        f"{layer}mlp.down_proj.weight": (size.width, size.mlp),
        f"{layer}post_attention_layernorm.weight": (size.width,),
        f"{_LANGUAGE}norm.weight": (size.width,),
        EXPERT_HEAD: (config.sizes.vocab_size, config.sizes.expert.width),
    }
    return {PREFIX[keys] + name: shape for name, shape in found.items()}


def initialise_pi(policy: nn.Module, config: PiConfig, context: ParallelContext, seed: int) -> None:
    """Draw fresh weights: matrices keep the variance of what passes through, norms begin as plain norms.

    Adaptive norms begin with scale 1, no shift and an open gate (openpi's begin with a shut one, which a policy trained
    from nothing is slow to open).
    """
    initialize(policy, pi_weight_map(config), context, seed, std=1.0)
    with torch.no_grad():
        for name, parameter in policy.named_parameters():
            if name.endswith(("norm1.weight", "norm2.weight", "norm.weight")) and not name.startswith("vision."):
                parameter.zero_()
            elif "embedding" in name and parameter.ndim == 2:
                parameter.mul_(0.5 if name.startswith("vision.") else parameter.shape[1] ** -0.5)
            elif name.endswith("dense.weight"):
                parameter.mul_(0.02 * parameter.shape[1] ** -0.5)
            elif parameter.ndim >= 2:
                parameter.mul_(parameter[0].numel() ** -0.5)
            if name.endswith("dense.bias"):
                parameter[2 * parameter.shape[0] // 3 :].fill_(1.0)


def _rules(config: PiConfig, prefix: str, table: str) -> Iterator[Rule]:
    sizes = config.sizes
    vision, language, expert = sizes.vision, sizes.language, sizes.expert
    tower = SiglipConfig(
        vision.hidden_size,
        vision.intermediate_size,
        vision.num_layers,
        vision.num_heads,
        config.image_size,
        vision.patch_size,
    )
    yield from siglip_rules(tower, "vision.", f"{prefix}{_PALIGEMMA}model.vision_tower.vision_model.")
    projector = f"{_PALIGEMMA}model.multi_modal_projector.linear"
    yield from _linear("projector", prefix + projector, language.width, vision.hidden_size)
    yield Rule("embedding.weight", Span(prefix + table, (sizes.vocab_size, language.width)))
    depth = language.depth
    conditioned = config.kind == "pi05"
    yield from _layer_rules("prefix", prefix + _LANGUAGE, language, range(depth - 1), conditioned=False)
    yield from _kept_rules(prefix + _LANGUAGE, language, depth - 1)
    yield from _layer_rules("expert", prefix + _EXPERT, expert, range(depth), conditioned=conditioned)
    yield from _norm("norm", f"{prefix}{_EXPERT}norm", expert.width, conditioned, None)
    actions, width = config.max_action_dim, expert.width
    yield from _linear("action_in", f"{prefix}action_in_proj", width, actions)
    yield from _linear("action_out", f"{prefix}action_out_proj", actions, width)
    time = "time_mlp" if conditioned else "action_time_mlp"
    yield from _linear("time_in", f"{prefix}{time}_in", width, width if conditioned else 2 * width)
    yield from _linear("time_out", f"{prefix}{time}_out", width, width)
    if not config.state_in_prompt:
        yield from _linear("state_in", f"{prefix}state_proj", width, config.max_state_dim)


def _layer_rules(stream: str, theirs: str, size: GemmaSize, layers: range, *, conditioned: bool) -> Iterator[Rule]:
    ours, theirs = f"layers.{{layer}}.{stream}.", f"{theirs}layers.{{layer}}."
    queries, keys, width = size.heads * size.head_dim, size.kv_heads * size.head_dim, size.width
    yield Rule(
        f"{ours}qkv.weight",
        Span(f"{theirs}self_attn.q_proj.weight", (queries, width)),
        Span(f"{theirs}self_attn.k_proj.weight", (keys, width)),
        Span(f"{theirs}self_attn.v_proj.weight", (keys, width)),
        layers=layers,
    )
    yield Rule(f"{ours}out.weight", Span(f"{theirs}self_attn.o_proj.weight", (width, queries)), layers=layers)
    yield Rule(
        f"{ours}gate_up.weight",
        Span(f"{theirs}mlp.gate_proj.weight", (size.mlp, width)),
        Span(f"{theirs}mlp.up_proj.weight", (size.mlp, width)),
        layers=layers,
    )
    yield Rule(f"{ours}down.weight", Span(f"{theirs}mlp.down_proj.weight", (width, size.mlp)), layers=layers)
    yield from _norm(f"{ours}norm1", f"{theirs}input_layernorm", width, conditioned, layers)
    yield from _norm(f"{ours}norm2", f"{theirs}post_attention_layernorm", width, conditioned, layers)


def _kept_rules(theirs: str, size: GemmaSize, last: int) -> Iterator[Rule]:
    """What is trained of the prefix's last layer."""
    ours, theirs = "layers.{layer}.prefix.", f"{theirs}layers.{{layer}}."
    keys, width = size.kv_heads * size.head_dim, size.width
    yield Rule(
        f"{ours}kv.weight",
        Span(f"{theirs}self_attn.k_proj.weight", (keys, width)),
        Span(f"{theirs}self_attn.v_proj.weight", (keys, width)),
        layers=[last],
    )
    yield from _norm(f"{ours}norm1", f"{theirs}input_layernorm", width, False, range(last, last + 1))


def _norm(ours: str, theirs: str, width: int, conditioned: bool, layers: range | None) -> Iterator[Rule]:
    if not conditioned:
        yield Rule(f"{ours}.weight", Span(f"{theirs}.weight", (width,)), layers=layers)
        return
    yield Rule(f"{ours}.dense.weight", Span(f"{theirs}.dense.weight", (3 * width, width)), layers=layers)
    yield Rule(f"{ours}.dense.bias", Span(f"{theirs}.dense.bias", (3 * width,)), layers=layers)


def _linear(ours: str, theirs: str, rows: int, columns: int) -> Iterator[Rule]:
    yield Rule(f"{ours}.weight", Span(f"{theirs}.weight", (rows, columns)))
    yield Rule(f"{ours}.bias", Span(f"{theirs}.bias", (rows,)))
