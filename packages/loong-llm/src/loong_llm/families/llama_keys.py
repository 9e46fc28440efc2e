"""The keys that Llama set in `config.json` and most families follow."""

from __future__ import annotations

from collections.abc import Sequence

from loong_core.nn.decoder_config import AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig
from loong_core.nn.moe.config import MoEConfig
from loong_llm.families.config_reader import ConfigReader


def read_attention(
    read: ConfigReader, *, qkv_bias: bool = False, output_bias: bool = False, qk_norm: bool = False, head_dim: int = 0
) -> AttentionConfig:
    """Grouped-query attention.

    Args:
        read: the config.
        qkv_bias: whether queries, keys and values have one.
        output_bias: whether the output has one.
        qk_norm: whether each head of queries and keys passes an RMSNorm.
        head_dim: where the config has none; 0: `hidden_size / num_attention_heads`.
    """
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    head_dim = read.integer("head_dim", head_dim or hidden // heads)
    return AttentionConfig(
        num_heads=heads,
        num_kv_heads=read.kv_heads(heads),
        head_dim=head_dim,
        rotary=read.rotary(head_dim),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        qk_norm=qk_norm,
    )


def read_decoder(
    read: ConfigReader,
    attention: AttentionConfig,
    feed_forward: FeedForwardConfig | MoEConfig | Sequence[FeedForwardConfig | MoEConfig],
    norm_eps: float = 1e-6,
) -> DecoderConfig:
    """The decoder; the config is finished, so faults that were found are raised here.

    Args:
        read: the config.
        attention: every block's.
        feed_forward: every block's, or one for each.
        norm_eps: where the config has none.

    Raises:
        ConfigError: if there was any fault.
    """
    read.only("hidden_act", "silu")
    read.only("attention_dropout", 0.0, None)
    layers = read.integer("num_hidden_layers")
    each = feed_forward if isinstance(feed_forward, Sequence) else [feed_forward] * layers
    config = DecoderConfig(
        hidden_size=read.integer("hidden_size"),
        vocab_size=read.integer("vocab_size"),
        blocks=tuple(BlockConfig(attention, own) for own in each),
        norm_eps=read.number("rms_norm_eps", norm_eps),
        tie_embeddings=read.flag("tie_word_embeddings", False),
        initializer_range=read.number("initializer_range", 0.02),
    )
    read.finish()
    return config
