"""Mixtral (arXiv:2401.04088): Llama's attention, and few large experts of which each token takes two."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_core.nn.decoder_config import DecoderConfig
from loong_core.nn.moe.config import MoEConfig, RouterConfig
from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.family import Family
from loong_llm.families.llama_keys import read_attention, read_decoder
from loong_llm.families.router_keys import ROUTER_KEYS, chosen_experts, expert_room, router_losses

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap

_THETA = 1e6
"""Base of the rotary embedding where a config names none."""


def _decoder_config(hf: dict[str, Any]) -> DecoderConfig:
    read = ConfigReader({"rope_theta": _THETA} | hf, "mixtral")
    experts, top_k = chosen_experts(read, "num_local_experts", "num_experts")
    mixture = MoEConfig(
        RouterConfig(experts, top_k, normalise=True, **router_losses(read)),
        read.integer("intermediate_size"),
        **expert_room(read),
    )
    read.only("router_jitter_noise", 0.0, None)
    read.only("sliding_window", None)
    return read_decoder(read, read_attention(read), mixture, norm_eps=1e-5)


def _weight_map(config: DecoderConfig) -> WeightMap:
    from loong_llm.families.decoder_names import MoENames, decoder_weight_map

    expert = "block_sparse_moe.experts.{expert}."
    names = MoENames(
        router="block_sparse_moe.gate.weight",
        gate=f"{expert}w1.weight",
        up=f"{expert}w3.weight",
        down=f"{expert}w2.weight",
    )
    return decoder_weight_map(config, moe=names)


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
