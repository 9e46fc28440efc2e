"""What families call the tensors of a vision tower's blocks, as rules of a weight map."""

from __future__ import annotations

from dataclasses import dataclass

from loong_core.checkpoint.weight_map import Cut, Rule, Span
from loong_vlm.towers.block_config import VisionBlockConfig


@dataclass(frozen=True)
class BlockNames:
    """Names within a block, without `.weight` and `.bias`.

    Attributes:
        attention_norm, output, feed_forward_norm, up, down: one layer each.
        qkv: one name where queries, keys and values are one tensor, else three.
        gate: of a gated feed-forward.
        qk_norm: of the norms of queries and keys.
        scales: of the vectors that multiply the two halves' outputs, complete.
        block: what stands before them, with `{layer}` for the block's number.
    """

    attention_norm: str
    qkv: tuple[str, ...]
    output: str
    feed_forward_norm: str
    up: str
    down: str
    gate: str = ""
    qk_norm: tuple[str, str] = ("", "")
    scales: tuple[str, str] = ("", "")
    block: str = "blocks.{layer}."


def block_rules(config: VisionBlockConfig, names: BlockNames, depth: int) -> list[Rule]:
    """Rules for `depth` blocks of a tower, under our names `layers.{layer}...`."""
    width, inner, layers = config.width, config.intermediate_size, range(depth)
    rules: list[Rule] = []

    def add(ours: str, *spans: Span) -> None:
        rules.append(Rule(f"layers.{{layer}}.{ours}", *spans, layers=layers))

    def span(name: str, shape: tuple[int, ...], cut: Cut | None = None) -> Span:
        return Span(names.block + name, shape, cut)

    norm_kinds = ("weight",) if config.norm == "rms_norm" else ("weight", "bias")
    for ours, theirs in (("attention_norm", names.attention_norm), ("feed_forward_norm", names.feed_forward_norm)):
        for kind in norm_kinds:
            add(f"{ours}.{kind}", span(f"{theirs}.{kind}", (width,)))
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        columns = (width,) if kind == "weight" else ()
        if len(names.qkv) == 1:
            whole = (3 * width, *columns)
            parts = [
                span(f"{names.qkv[0]}.{kind}", whole, Cut(0, config.num_heads, config.head_dim, number * width))
                for number in range(3)
            ]
        else:
            cut = Cut(0, config.num_heads, config.head_dim)
            parts = [span(f"{name}.{kind}", (width, *columns), cut) for name in names.qkv]
        add(f"attention.qkv.{kind}", *parts)
    if config.qk_norm:
        for ours, theirs in zip(("query_norm", "key_norm"), names.qk_norm, strict=True):
            add(f"attention.{ours}.weight", span(f"{theirs}.weight", (width,)))
    add(
        "attention.output.weight",
        span(f"{names.output}.weight", (width, width), Cut(1, config.num_heads, config.head_dim)),
    )
    add("attention.output.bias", span(f"{names.output}.bias", (width,)))
    rows = [names.gate, names.up] if config.gated else [names.up]
    ours = "feed_forward.gate_up" if config.gated else "feed_forward.up"
    add(f"{ours}.weight", *(span(f"{name}.weight", (inner, width), Cut(0, inner)) for name in rows))
    add(f"{ours}.bias", *(span(f"{name}.bias", (inner,), Cut(0, inner)) for name in rows))
    add("feed_forward.down.weight", span(f"{names.down}.weight", (width, inner), Cut(1, inner)))
    add("feed_forward.down.bias", span(f"{names.down}.bias", (width,)))
    if config.layer_scale:
        for ours, theirs in zip(("attention_scale", "feed_forward_scale"), names.scales, strict=True):
            add(ours, span(theirs, (width,)))
    return rules
