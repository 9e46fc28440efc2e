"""The tensor names that Llama set and Qwen2 and Qwen3 follow, as a weight map."""

from __future__ import annotations

from loong_core.checkpoint.weight_map import Cut, Rule, Span, WeightMap
from loong_core.nn.decoder_config import AttentionConfig, DecoderConfig, FeedForwardConfig

_OURS = "layers.{layer}."
_THEIRS = "model.layers.{layer}."


def llama_weight_map(config: DecoderConfig) -> WeightMap:
    """Rules for a uniform dense decoder whose tensors are called `model.layers.N.self_attn.q_proj.weight` and so on."""
    assert isinstance(config.feed_forward, FeedForwardConfig)
    hidden, vocabulary = config.hidden_size, Cut(0, config.vocab_size)
    table = (config.vocab_size, hidden)
    head = "model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"
    return WeightMap(
        [
            Rule("embedding.weight", Span("model.embed_tokens.weight", table, vocabulary)),
            Rule(f"{_OURS}attention_norm.weight", Span(f"{_THEIRS}input_layernorm.weight", (hidden,))),
            *_attention_rules(config.attention, hidden),
            Rule(f"{_OURS}feed_forward_norm.weight", Span(f"{_THEIRS}post_attention_layernorm.weight", (hidden,))),
            *_feed_forward_rules(config.feed_forward, hidden),
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


def _feed_forward_rules(config: FeedForwardConfig, hidden: int) -> list[Rule]:
    width, theirs = config.intermediate_size, f"{_THEIRS}mlp."
    rows, columns = Cut(0, width), Cut(1, width)
    rules = [
        Rule(
            f"{_OURS}feed_forward.gate_up.weight",
            Span(f"{theirs}gate_proj.weight", (width, hidden), rows),
            Span(f"{theirs}up_proj.weight", (width, hidden), rows),
        ),
        Rule(f"{_OURS}feed_forward.down.weight", Span(f"{theirs}down_proj.weight", (hidden, width), columns)),
    ]
    if config.bias:
        gate, up = (Span(f"{theirs}{name}_proj.bias", (width,), rows) for name in ("gate", "up"))
        rules += [
            Rule(f"{_OURS}feed_forward.gate_up.bias", gate, up),
            Rule(f"{_OURS}feed_forward.down.bias", Span(f"{theirs}down_proj.bias", (hidden,))),
        ]
    return rules
