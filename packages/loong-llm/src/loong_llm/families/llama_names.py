"""The tensor names that Llama set and most families follow, as a weight map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loong_core.checkpoint.weight_map import Cut, Rule, Span, WeightMap
from loong_core.nn.decoder_config import AttentionConfig, DecoderConfig, FeedForwardConfig
from loong_core.nn.moe.config import MoEConfig

_OURS = "layers.{layer}."
_THEIRS = "model.layers.{layer}."


@dataclass(frozen=True)
class MoENames:
    """What a family calls the tensors of a mixture of experts, below the layer.

    Attributes:
        router: the router's weight.
        gate, up, down: an expert's three weights, with `{expert}` for its number.
    """

    router: str
    gate: str
    up: str
    down: str


def llama_weight_map(config: DecoderConfig, moe: MoENames | None = None) -> WeightMap:
    """Rules for a decoder whose tensors are called `model.layers.N.self_attn.q_proj.weight` and so on.

    Args:
        config: the decoder; its layers share one kind of attention.
        moe: names in the layers that are mixtures of experts, if there are any.
    """
    hidden, vocabulary = config.hidden_size, Cut(0, config.vocab_size)
    table = (config.vocab_size, hidden)
    head = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
    rules = [
        Rule("embedding.weight", Span("model.embed_tokens.weight", table, vocabulary)),
        Rule(f"{_OURS}attention_norm.weight", Span(f"{_THEIRS}input_layernorm.weight", (hidden,))),
        *_attention_rules(config.attention, hidden),
        Rule(f"{_OURS}feed_forward_norm.weight", Span(f"{_THEIRS}post_attention_layernorm.weight", (hidden,))),
    ]
    for kind in dict.fromkeys(block.feed_forward for block in config.blocks):
        layers = [number for number, block in enumerate(config.blocks) if block.feed_forward == kind]
        if isinstance(kind, FeedForwardConfig):
            rules += _feed_forward_rules(kind, hidden, layers)
        else:
            assert moe is not None
            rules += _mixture_rules(kind, moe, hidden, layers)
    return WeightMap(
        [
            *rules,
            Rule("norm.weight", Span("model.norm.weight", (hidden,))),
            Rule("head.weight", Span(head, table, vocabulary)),
        ]
    )


def _attention_rules(config: AttentionConfig, hidden: int) -> list[Rule]:
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_dim
    theirs = f"{_THEIRS}self_attn."

    def projection(letter: str, heads: int, kind: str) -> Span:
        shape = (heads * size, hidden) if kind == "weight" else (heads * size,)
        return Span(f"{theirs}{letter}_proj.{kind}", shape, Cut(0, heads, size))

    rules = []
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        q, k, v = (projection(*each, kind) for each in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        rules += [
            Rule(f"{_OURS}attention.qkv.{kind}", q, k, v),
            Rule(f"{_OURS}attention.query.{kind}", q),
            Rule(f"{_OURS}attention.key_value.{kind}", k, v),
        ]
    if config.qk_norm:
        rules += [
            Rule(f"{_OURS}attention.query_norm.weight", Span(f"{theirs}q_norm.weight", (size,))),
            Rule(f"{_OURS}attention.key_norm.weight", Span(f"{theirs}k_norm.weight", (size,))),
        ]
    output = Span(f"{theirs}o_proj.weight", (hidden, heads * size), Cut(1, heads, size))
    rules.append(Rule(f"{_OURS}attention.output.weight", output))
    if config.output_bias:
        rules.append(Rule(f"{_OURS}attention.output.bias", Span(f"{theirs}o_proj.bias", (hidden,))))
    return rules


def _feed_forward_rules(config: FeedForwardConfig, hidden: int, layers: Sequence[int]) -> list[Rule]:
    width, theirs = config.intermediate_size, f"{_THEIRS}mlp."
    rows, columns = Cut(0, width), Cut(1, width)
    gate, up = (Span(f"{theirs}{name}_proj.weight", (width, hidden), rows) for name in ("gate", "up"))
    down = Span(f"{theirs}down_proj.weight", (hidden, width), columns)
    rules = [
        Rule(f"{_OURS}feed_forward.gate_up.weight", gate, up, layers=layers),
        Rule(f"{_OURS}feed_forward.down.weight", down, layers=layers),
    ]
    if config.bias:
        gate, up = (Span(f"{theirs}{name}_proj.bias", (width,), rows) for name in ("gate", "up"))
        rules += [
            Rule(f"{_OURS}feed_forward.gate_up.bias", gate, up, layers=layers),
            Rule(f"{_OURS}feed_forward.down.bias", Span(f"{theirs}down_proj.bias", (hidden,)), layers=layers),
        ]
    return rules


def _mixture_rules(config: MoEConfig, names: MoENames, hidden: int, layers: Sequence[int]) -> list[Rule]:
    experts, width = config.router.num_experts, config.expert_size
    gate, up = (Span(_THEIRS + name, (width, hidden), Cut(0, width)) for name in (names.gate, names.up))
    down = Span(_THEIRS + names.down, (hidden, width), Cut(1, width))
    return [
        Rule(f"{_OURS}feed_forward.router.weight", Span(_THEIRS + names.router, (experts, hidden)), layers=layers),
        Rule(f"{_OURS}feed_forward.experts.gate_up", gate, up, layers=layers, experts=experts),
        Rule(f"{_OURS}feed_forward.experts.down", down, layers=layers, experts=experts),
    ]
