"""Mixtral (arXiv:2401.04088): Llama's attention, and few large experts of which each token takes two."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_core.nn.decoder_config import AttentionConfig, BlockConfig, DecoderConfig
from loong_core.nn.moe.config import MoEConfig, RouterConfig
from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.family import Family
from loong_llm.families.router_keys import ROUTER_KEYS, chosen_experts, expert_room, router_losses

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap

_THETA = 1e6
"""Base of the rotary embedding where a config names none."""


def _decoder_config(hf: dict[str, Any]) -> DecoderConfig:
    read = ConfigReader({"rope_theta": _THETA} | hf, "mixtral")
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    head_dim = read.integer("head_dim", hidden // heads)
    attention = AttentionConfig(heads, read.kv_heads(heads), head_dim, read.rotary(head_dim))
    experts, top_k = chosen_experts(read, "num_local_experts", "num_experts")
    mixture = MoEConfig(
        RouterConfig(experts, top_k, normalise=True, **router_losses(read)),
        read.integer("intermediate_size"),
        **expert_room(read),
    )
    read.only("hidden_act", "silu")
    read.only("attention_dropout", 0.0, None)
    read.only("router_jitter_noise", 0.0, None)
    read.only("sliding_window", None)
    config = DecoderConfig(
        hidden_size=hidden,
        vocab_size=read.integer("vocab_size"),
        blocks=(BlockConfig(attention, mixture),) * read.integer("num_hidden_layers"),
        norm_eps=read.number("rms_norm_eps", 1e-5),
        tie_embeddings=read.flag("tie_word_embeddings", False),
        initializer_range=read.number("initializer_range", 0.02),
    )
    read.finish()
    return config


def _weight_map(config: DecoderConfig) -> WeightMap:
    from loong_llm.families.llama_names import MoENames, llama_weight_map

    expert = "block_sparse_moe.experts.{expert}."
    names = MoENames(
        router="block_sparse_moe.gate.weight",
        gate=f"{expert}w1.weight",
        up=f"{expert}w3.weight",
        down=f"{expert}w2.weight",
    )
    return llama_weight_map(config, names)


MIXTRAL = Family(
    name="mixtral",
    model_types=("mixtral",),
    decoder_config=_decoder_config,
    weight_map=_weight_map,
    configs=files("loong_llm") / "configs" / "mixtral",
    transformers_class="MixtralForCausalLM",
    optional_keys=ROUTER_KEYS,
    harmless_tensors=(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
)
