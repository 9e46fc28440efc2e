"""The first Qwen (arXiv:2309.16609): Llama's layers under names of its own, with q, k and v in one biased tensor.

Two traps of its config: `intermediate_size` is twice the feed-forward's width, and `no_bias` is not about q, k and v.
Its inference-time tricks beyond `seq_length` (dynamic NTK, log-n attention) do not act in training and are not built.
"""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_core.nn.decoder_config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    RotaryConfig,
)
from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.family import Family

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


def _decoder_config(hf: dict[str, Any]) -> DecoderConfig:
    read = ConfigReader(hf, "qwen")
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    head_dim = read.integer("kv_channels", 128)
    rotary = RotaryConfig(read.number("rotary_emb_base", 10000), int(head_dim * read.number("rotary_pct", 1.0)))
    attention = AttentionConfig(heads, heads, head_dim, rotary, qkv_bias=True)
    if heads * head_dim != hidden:
        read.fault("kv_channels", f"{head_dim} x {heads} heads is not hidden_size {hidden}")
    doubled = read.integer("intermediate_size")
    if doubled % 2:
        read.fault("intermediate_size", f"is {doubled}", "it is twice the feed-forward's width, so it is even")
    read.only("no_bias", True)
    read.only("attn_dropout_prob", 0.0)
    read.only("emb_dropout_prob", 0.0)
    read.only("scale_attn_weights", True)
    config = DecoderConfig(
        hidden_size=hidden,
        vocab_size=read.integer("vocab_size"),
        blocks=(BlockConfig(attention, FeedForwardConfig(doubled // 2)),) * read.integer("num_hidden_layers"),
        norm_eps=read.number("layer_norm_epsilon", 1e-6),
        tie_embeddings=read.flag("tie_word_embeddings", False),
        initializer_range=read.number("initializer_range", 0.02),
    )
    read.finish()
    return config


def _weight_map(config: DecoderConfig) -> WeightMap:
    from loong_llm.families.decoder_names import DecoderNames, decoder_weight_map

    names = DecoderNames(
        embedding="transformer.wte", norm="transformer.ln_f", layer="transformer.h.{layer}.", attention_norm="ln_1",
        qkv=("attn.c_attn",), output="attn.c_proj", feed_forward_norm="ln_2", gate="mlp.w2", up="mlp.w1",
        down="mlp.c_proj",
    )  # fmt: skip
    return decoder_weight_map(config, names)


QWEN = Family(
    name="qwen",
    model_types=("qwen",),
    decoder_config=_decoder_config,
    weight_map=_weight_map,
    configs=files("loong_llm") / "configs" / "qwen",
    harmless_tensors=(r"transformer\.rotary_emb\.inv_freq", r"transformer\.h\.\d+\.attn\.(masked_)?bias"),
    tied_tensors={"lm_head.weight": "transformer.wte.weight"},
)
