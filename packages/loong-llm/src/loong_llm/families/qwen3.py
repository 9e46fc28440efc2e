"""Qwen3, dense sizes (arXiv:2505.09388): Llama's layers, with an RMSNorm on each query and key head."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_core.nn.decoder_config import AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig
from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.family import Family

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


def _decoder_config(hf: dict[str, Any]) -> DecoderConfig:
    read = ConfigReader(hf, "qwen3")
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    head_dim = read.integer("head_dim", 128)
    bias = read.flag("attention_bias", False)
    attention = AttentionConfig(
        num_heads=heads,
        num_kv_heads=read.kv_heads(heads),
        head_dim=head_dim,
        rotary=read.rotary(head_dim),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
    feed_forward = FeedForwardConfig(read.integer("intermediate_size"))
    read.only("hidden_act", "silu")
    read.only("attention_dropout", 0.0, None)
    read.no_sliding_window()
    config = DecoderConfig(
        hidden_size=hidden,
        vocab_size=read.integer("vocab_size"),
        blocks=(BlockConfig(attention, feed_forward),) * read.integer("num_hidden_layers"),
        norm_eps=read.number("rms_norm_eps", 1e-6),
        tie_embeddings=read.flag("tie_word_embeddings", False),
        initializer_range=read.number("initializer_range", 0.02),
    )
    read.finish()
    return config


def _weight_map(config: DecoderConfig) -> WeightMap:
    from loong_llm.families.llama_names import llama_weight_map

    return llama_weight_map(config)


QWEN3 = Family(
    name="qwen3",
    model_types=("qwen3",),
    decoder_config=_decoder_config,
    weight_map=_weight_map,
    configs=files("loong_llm") / "configs" / "qwen3",
    transformers_class="Qwen3ForCausalLM",
    harmless_tensors=(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
    tied_tensors={"lm_head.weight": "model.embed_tokens.weight"},
)
