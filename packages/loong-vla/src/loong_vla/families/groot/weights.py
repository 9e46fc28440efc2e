"""What a GR00T policy's parameters are called in lerobot's and NVIDIA's files, and fresh values for them.

Embodiments' layers are banks there, `[32, inputs, outputs]`; a head that holds some embodiments reads those rows only.
lerobot's names (N1.7) have `_groot_model.` before NVIDIA's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from itertools import pairwise
from math import prod

from torch import nn

from loong_core.checkpoint.pieces import Piece
from loong_core.checkpoint.weight_map import Cut, Rule, Span, WeightMap, part_rules
from loong_core.nn.initialize import initialize
from loong_core.parallel.context import ParallelContext
from loong_vla.families.family import StoredNames
from loong_vla.families.groot.backbones import backbone_map
from loong_vla.families.groot.config import GrootHeadConfig
from loong_vla.families.groot.head import TIME_CHANNELS
from loong_vla.families.groot.policy_config import GrootConfig

LEROBOT_PREFIX = "_groot_model."
HEAD, BACKBONE = "action_head.", "backbone.model."
LEROBOT = LEROBOT_PREFIX + HEAD

TABLES = {
    "n1.7": (f"{BACKBONE}lm_head.weight", f"{BACKBONE}model.language_model.embed_tokens.weight"),
    "n1.6": (f"{BACKBONE}language_model.lm_head.weight", f"{BACKBONE}language_model.model.embed_tokens.weight"),
}
"""The text embedding as files name it that hold it once, and where it stands beside a head that means nothing."""
FINAL_NORM = {
    "n1.7": f"{BACKBONE}model.language_model.norm.weight",
    "n1.6": f"{BACKBONE}language_model.model.norm.weight",
}
UNUSED = {"n1.7": (), "n1.6": (f"{HEAD}mask_token",)}
"""What files may hold beside: N1.6's token in the place of a state that is dropped, which none is."""


def groot_weight_map(config: GrootConfig) -> WeightMap:
    """The policy's parameters by the names that are written: lerobot's of N1.7, NVIDIA's of N1.6."""
    return _whole_map(config, written_prefix(config), TABLES[config.version][0])


def written_prefix(config: GrootConfig) -> str:
    """What stands before NVIDIA's names in the files that are written."""
    return LEROBOT_PREFIX if config.version == "n1.7" else ""


def stored_names(config: GrootConfig, names: Collection[str]) -> StoredNames:
    """What a folder calls the policy's tensors: lerobot's names or NVIDIA's, the text embedding by either of two."""
    prefix = LEROBOT_PREFIX if any(name.startswith(LEROBOT_PREFIX) for name in names) else ""
    once, beside = TABLES[config.version]
    table = beside if prefix + beside in names else once
    written = written_prefix(config)
    return StoredNames(
        _whole_map(config, prefix, table),
        (prefix + once, prefix + FINAL_NORM[config.version], *(prefix + name for name in UNUSED[config.version])),
        lambda name: prefix + name.removeprefix(written),
    )


def handed_on(config: GrootConfig) -> list[Piece]:
    """Boxes that files hold and nothing here is trained of: the final norm, and embodiments that are not held."""
    prefix = written_prefix(config)
    head = config.head
    found = [Piece.whole(prefix + FINAL_NORM[config.version], (config.parts.language.config.hidden_size,))]
    every = groot_head_map(replace(head, active=tuple(range(head.embodiments))), prefix + HEAD)
    held = [-1, *sorted(head.active), head.embodiments]
    gaps = [(before + 1, after) for before, after in pairwise(held) if after > before + 1]
    for name, shape in every.tensors(head.num_layers).items():
        if name.endswith((".W", ".b")):
            for start, stop in gaps:
                found.append(Piece(name, shape, (start, *(0,) * len(shape[1:])), (stop - start, *shape[1:])))
    return found


def initialise_groot(policy: nn.Module, config: GrootConfig, context: ParallelContext, seed: int) -> None:
    """Draw fresh weights: matrices keep the variance of what passes through, norms begin as plain norms."""
    initialize(policy, groot_weight_map(config), context, seed, std=_spread)


def _spread(piece: Piece) -> float:
    """Standard deviation of a tensor's draw."""
    shape = piece.global_shape
    if piece.name.endswith((".b", ".bias")):
        return 0.0
    if ("embed" in piece.name and len(shape) == 2) or piece.name.endswith("lm_head.weight"):
        return 0.02
    inputs = shape[1] if piece.name.endswith(".W") else prod(shape[1:])
    return inputs**-0.5


def _whole_map(config: GrootConfig, prefix: str, table: str) -> WeightMap:
    """Backbone and head; `table` is what the text embedding is called."""
    once, beside = (each.removeprefix(BACKBONE) for each in TABLES[config.version])

    def in_backbone(name: str) -> str:
        return prefix + (table if name in (once, beside) else BACKBONE + name)

    language = config.parts.language.config.num_layers
    head = groot_head_map(config.head, prefix + HEAD)
    return WeightMap(
        [
            *part_rules(backbone_map(config.parts, config.version).rules, language, "backbone.", in_backbone),
            *part_rules(head.rules, config.head.num_layers, "head.", lambda name: name),
        ]
    )


def groot_head_map(config: GrootHeadConfig, prefix: str = LEROBOT) -> WeightMap:
    """The head's parameters in terms of a file's tensors; `prefix` says whose."""
    return WeightMap(_rules(config, prefix))


def _rules(config: GrootHeadConfig, prefix: str) -> Iterator[Rule]:
    width, vl = config.width, config.vl_width
    for part in ("weight", "bias"):
        yield Rule(f"vl_norm.{part}", Span(f"{prefix}vlln.{part}", (vl,)))
    yield from _vl_rules(config, f"{prefix}vl_self_attention.transformer_blocks.{{layer}}.")
    dit = f"{prefix}model."
    blocks = f"{dit}transformer_blocks."
    for name, numbers in (("text_kv", config.text_blocks), ("image_kv", config.image_blocks)):
        tensors = [f"{blocks}{number}.attn1.to_{each}" for number in numbers for each in ("k", "v")]
        yield Rule(f"{name}.weight", *(Span(f"{each}.weight", (width, vl)) for each in tensors))
        yield Rule(f"{name}.bias", *(Span(f"{each}.bias", (width,)) for each in tensors))
    layer, ours = f"{blocks}{{layer}}.", "layers.{layer}."
    every, crossing = range(config.num_layers), range(0, config.num_layers, 2)
    among = range(1, config.num_layers, 2)
    yield from _linear(f"{ours}modulation", [f"{layer}norm1.linear"], 2 * width, width, every)
    yield from _linear(f"{ours}q", [f"{layer}attn1.to_q"], width, width, crossing)
    yield from _linear(f"{ours}qkv", [f"{layer}attn1.to_{each}" for each in "qkv"], width, width, among)
    yield from _linear(f"{ours}out", [f"{layer}attn1.to_out.0"], width, width, every)
    yield from _linear(f"{ours}up", [f"{layer}ff.net.0.proj"], 4 * width, width, every)
    yield from _linear(f"{ours}down", [f"{layer}ff.net.2"], width, 4 * width, every)
    embedder = f"{dit}timestep_encoder.timestep_embedder.linear_"
    yield from _linear("time1", [f"{embedder}1"], width, TIME_CHANNELS)
    yield from _linear("time2", [f"{embedder}2"], width, width)
    yield from _linear("out_modulation", [f"{dit}proj_out_1"], 2 * width, width)
    yield from _linear("out", [f"{dit}proj_out_2"], config.output_width, width)
    yield Rule("positions.weight", Span(f"{prefix}position_embedding.weight", (config.max_positions, width)))
    state, hidden = config.state_dim * config.state_history, config.hidden_width
    for name, inputs, outputs in (
        ("state_encoder", state, width),
        ("action_decoder", config.output_width, config.action_dim),
    ):
        yield from _banks(config, f"{name}.layer1", f"{prefix}{name}.layer1", inputs, hidden)
        yield from _banks(config, f"{name}.layer2", f"{prefix}{name}.layer2", hidden, outputs)
    for number, inputs in ((1, config.action_dim), (2, 2 * width), (3, width)):
        yield from _banks(config, f"action_encoder.layer{number}", f"{prefix}action_encoder.W{number}", inputs, width)


def _vl_rules(config: GrootHeadConfig, layer: str) -> Iterator[Rule]:
    width, layers = config.vl_heads * config.vl_head_dim, range(config.vl_layers)
    ours = "vl.layers.{layer}."
    for norm in ("norm1", "norm3"):
        for part in ("weight", "bias"):
            yield Rule(f"{ours}{norm}.{part}", Span(f"{layer}{norm}.{part}", (width,)), layers=layers)
    yield from _linear(f"{ours}qkv", [f"{layer}attn1.to_{each}" for each in "qkv"], width, width, layers)
    yield from _linear(f"{ours}out", [f"{layer}attn1.to_out.0"], width, width, layers)
    yield from _linear(f"{ours}up", [f"{layer}ff.net.0.proj"], 4 * width, width, layers)
    yield from _linear(f"{ours}down", [f"{layer}ff.net.2"], width, 4 * width, layers)


def _linear(ours: str, theirs: list[str], rows: int, columns: int, layers: range | None = None) -> Iterator[Rule]:
    yield Rule(f"{ours}.weight", *(Span(f"{each}.weight", (rows, columns)) for each in theirs), layers=layers)
    yield Rule(f"{ours}.bias", *(Span(f"{each}.bias", (rows,)) for each in theirs), layers=layers)


def _banks(config: GrootHeadConfig, ours: str, theirs: str, inputs: int, outputs: int) -> Iterator[Rule]:
    banks = config.embodiments
    cuts = [Cut(0, 1, start=each) for each in config.active]
    yield Rule(f"{ours}.weight", *(Span(f"{theirs}.W", (banks, inputs, outputs), cut) for cut in cuts))
    yield Rule(f"{ours}.bias", *(Span(f"{theirs}.b", (banks, outputs), cut) for cut in cuts))
