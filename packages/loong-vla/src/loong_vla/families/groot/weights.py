"""What the action head's parameters are called in lerobot's and NVIDIA's files.

Embodiments' layers are banks there, `[32, inputs, outputs]`; a head that holds some embodiments reads those rows only.
"""

from __future__ import annotations

from collections.abc import Iterator

from loong_core.checkpoint.weight_map import Cut, Rule, Span, WeightMap
from loong_vla.families.groot.config import GrootHeadConfig
from loong_vla.families.groot.head import TIME_CHANNELS

LEROBOT = "_groot_model.action_head."
NVIDIA = "action_head."


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
