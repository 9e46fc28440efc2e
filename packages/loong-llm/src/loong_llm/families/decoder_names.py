"""What families call the tensors of a decoder, as a weight map; by default as Llama does, whom most follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loong_core.checkpoint.weight_map import Cut, Rule, Span, WeightMap
from loong_core.nn.decoder_config import AttentionConfig, DecoderConfig, FeedForwardConfig
from loong_core.nn.moe.config import MoEConfig

_OURS = "layers.{layer}."


@dataclass(frozen=True)
class DecoderNames:
    """Names without `.weight` and `.bias`; of the layers, what stands behind `layer`.

    Attributes:
        embedding, norm, head: of the whole model; a tied head is the embedding.
        layer: what stands before the names of a layer, with `{layer}` for its number.
        attention_norm, output, feed_forward_norm, gate, up, down: one linear layer or norm each.
        qkv: one name where queries, keys and values are one tensor, else three.
        grouped: of one tensor, whether it has for each key-value head its queries, its key and its value, rather than
            all queries, then all keys, then all values.
        qk_norm: the norms of queries and keys.
    """

    embedding: str = "model.embed_tokens"
    norm: str = "model.norm"
    head: str = "lm_head"
    layer: str = "model.layers.{layer}."
    attention_norm: str = "input_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    grouped: bool = False
    qk_norm: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")
    output: str = "self_attn.o_proj"
    feed_forward_norm: str = "post_attention_layernorm"
    gate: str = "mlp.gate_proj"
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"


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


LLAMA_NAMES = DecoderNames()


def decoder_weight_map(
    config: DecoderConfig, names: DecoderNames = LLAMA_NAMES, moe: MoENames | None = None
) -> WeightMap:
    """Rules for a decoder.

    Args:
        config: the decoder; its layers share one kind of attention.
        names: what its tensors are called.
        moe: names in the layers that are mixtures of experts, if there are any.
    """
    hidden, vocabulary = config.hidden_size, Cut(0, config.vocab_size)
    table = (config.vocab_size, hidden)
    head = names.embedding if config.tie_embeddings else names.head
    attention_norm, feed_forward_norm = (
        Span(f"{names.layer}{name}.weight", (hidden,)) for name in (names.attention_norm, names.feed_forward_norm)
    )
    rules = [
        Rule("embedding.weight", Span(f"{names.embedding}.weight", table, vocabulary)),
        Rule(f"{_OURS}attention_norm.weight", attention_norm),
        *_attention_rules(config.attention, names, hidden),
        Rule(f"{_OURS}feed_forward_norm.weight", feed_forward_norm),
    ]
    for kind in dict.fromkeys(block.feed_forward for block in config.blocks):
        layers = [number for number, block in enumerate(config.blocks) if block.feed_forward == kind]
        if isinstance(kind, FeedForwardConfig):
            rules += _feed_forward_rules(kind, names, hidden, layers)
        else:
            assert moe is not None
            rules += _mixture_rules(kind, names.layer, moe, hidden, layers)
    return WeightMap(
        [
            *rules,
            Rule("norm.weight", Span(f"{names.norm}.weight", (hidden,))),
            Rule("head.weight", Span(f"{head}.weight", table, vocabulary)),
        ]
    )


def _attention_rules(config: AttentionConfig, names: DecoderNames, hidden: int) -> list[Rule]:
    heads, size = config.num_heads, config.head_dim
    rules = []
    for kind in ("weight", "bias") if config.qkv_bias else ("weight",):
        q, k, v = _qkv_spans(config, names, hidden, kind)
        rules += [
            Rule(f"{_OURS}attention.qkv.{kind}", q, k, v),
            Rule(f"{_OURS}attention.query.{kind}", q),
            Rule(f"{_OURS}attention.key_value.{kind}", k, v),
        ]
    if config.qk_norm:
        query, key = (Span(f"{names.layer}{name}.weight", (size,)) for name in names.qk_norm)
        rules += [
            Rule(f"{_OURS}attention.query_norm.weight", query),
            Rule(f"{_OURS}attention.key_norm.weight", key),
        ]
    theirs = names.layer + names.output
    output = Span(f"{theirs}.weight", (hidden, heads * size), Cut(1, heads, size))
    rules.append(Rule(f"{_OURS}attention.output.weight", output))
    if config.output_bias:
        rules.append(Rule(f"{_OURS}attention.output.bias", Span(f"{theirs}.bias", (hidden,))))
    return rules


def _qkv_spans(config: AttentionConfig, names: DecoderNames, hidden: int, kind: str) -> list[Span]:
    """Queries, keys and values."""
    units, size = (config.num_heads, config.num_kv_heads, config.num_kv_heads), config.head_dim
    columns = (hidden,) if kind == "weight" else ()
    if len(names.qkv) == 3:
        return [
            Span(f"{names.layer}{name}.{kind}", (own * size, *columns), Cut(0, own, size))
            for name, own in zip(names.qkv, units, strict=True)
        ]
    queries = config.num_heads // config.num_kv_heads
    if names.grouped:
        step = (queries + 2) * size
        runs = ((0, queries), (queries, 1), (queries + 1, 1))  # first unit of a group, and how many
        cuts = [
            Cut(0, own, size, start=first * size, run=run, step=step)
            for own, (first, run) in zip(units, runs, strict=True)
        ]
    else:
        cuts = [Cut(0, own, size, start=sum(units[:number]) * size) for number, own in enumerate(units)]
    return [Span(f"{names.layer}{names.qkv[0]}.{kind}", (sum(units) * size, *columns), cut) for cut in cuts]


def _feed_forward_rules(
    config: FeedForwardConfig, names: DecoderNames, hidden: int, layers: Sequence[int]
) -> list[Rule]:
    width = config.intermediate_size
    rows, columns = Cut(0, width), Cut(1, width)
    gate, up = (Span(f"{names.layer}{name}.weight", (width, hidden), rows) for name in (names.gate, names.up))
    down = Span(f"{names.layer}{names.down}.weight", (hidden, width), columns)
    rules = [
        Rule(f"{_OURS}feed_forward.gate_up.weight", gate, up, layers=layers),
        Rule(f"{_OURS}feed_forward.down.weight", down, layers=layers),
    ]
    if config.bias:
        gate, up = (Span(f"{names.layer}{name}.bias", (width,), rows) for name in (names.gate, names.up))
        down = Span(f"{names.layer}{names.down}.bias", (hidden,))
        rules += [
            Rule(f"{_OURS}feed_forward.gate_up.bias", gate, up, layers=layers),
            Rule(f"{_OURS}feed_forward.down.bias", down, layers=layers),
        ]
    return rules


def _mixture_rules(config: MoEConfig, theirs: str, names: MoENames, hidden: int, layers: Sequence[int]) -> list[Rule]:
    experts, width = config.router.num_experts, config.expert_size
    gate, up = (Span(theirs + name, (width, hidden), Cut(0, width)) for name in (names.gate, names.up))
    down = Span(theirs + names.down, (hidden, width), Cut(1, width))
    return [
        Rule(f"{_OURS}feed_forward.router.weight", Span(theirs + names.router, (experts, hidden)), layers=layers),
        Rule(f"{_OURS}feed_forward.experts.gate_up", gate, up, layers=layers, experts=experts),
        Rule(f"{_OURS}feed_forward.experts.down", down, layers=layers, experts=experts),
    ]
