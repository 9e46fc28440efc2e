"""Qwen3, dense sizes (arXiv:2505.09388): Llama's layers, with an RMSNorm on each query and key head."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_core.nn.decoder_config import DecoderConfig, FeedForwardConfig
from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.family import Family
from loong_llm.families.llama_keys import read_attention, read_decoder

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


def _decoder_config(hf: dict[str, Any]) -> DecoderConfig:
    read = ConfigReader(hf, "qwen3")
    bias = read.flag("attention_bias", False)
    attention = read_attention(read, qkv_bias=bias, output_bias=bias, qk_norm=True, head_dim=128)
    read.no_sliding_window()
    return read_decoder(read, attention, FeedForwardConfig(read.integer("intermediate_size")))


def _weight_map(config: DecoderConfig) -> WeightMap:
    from loong_llm.families.decoder_names import decoder_weight_map

    return decoder_weight_map(config)


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
