"""Qwen1.5, Qwen2 and Qwen2.5 (arXiv:2407.10671, arXiv:2412.15115): Llama's layers, with a bias on q, k and v only."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_core.nn.decoder_config import AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig
from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.family import Family

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


def _decoder_config(hf: dict[str, Any]) -> DecoderConfig:
    read = ConfigReader(hf, "qwen2")
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    head_dim = read.integer("head_dim", hidden // heads)
    attention = AttentionConfig(
        num_heads=heads,
        num_kv_heads=read.kv_heads(heads),
        head_dim=head_dim,
        rotary=read.rotary(head_dim),
        qkv_bias=True,
    )
    feed_forward = FeedForwardConfig(read.integer("intermediate_size"))
    read.only("hidden_act", "silu")
    read.only("attention_dropout", 0.0, None)
    read.only("use_mrope", False, None)
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


QWEN2 = Family(
    name="qwen2",
    model_types=("qwen2",),
    decoder_config=_decoder_config,
    weight_map=_weight_map,
    configs=files("loong_llm") / "configs" / "qwen2",
    transformers_class="Qwen2ForCausalLM",
    harmless_tensors=(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
    tied_tensors={"lm_head.weight": "model.embed_tokens.weight"},
)
