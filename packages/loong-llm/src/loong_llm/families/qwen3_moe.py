"""Qwen3's mixtures of experts (arXiv:2505.09388): the attention of the dense sizes, and a softmax over all experts."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Any

from loong_core.nn.decoder_config import DecoderConfig, FeedForwardConfig
from loong_core.nn.moe.config import MoEConfig, RouterConfig
from loong_llm.families.config_reader import ConfigReader
from loong_llm.families.family import Family
from loong_llm.families.llama_keys import read_attention, read_decoder
from loong_llm.families.router_keys import ROUTER_KEYS, chosen_experts, expert_room, router_losses

if TYPE_CHECKING:
    from loong_core.checkpoint.weight_map import WeightMap


def _decoder_config(hf: dict[str, Any]) -> DecoderConfig:
    read = ConfigReader(hf, "qwen3_moe")
    bias = read.flag("attention_bias", False)
    attention = read_attention(read, qkv_bias=bias, output_bias=bias, qk_norm=True)
    experts, top_k = chosen_experts(read, "num_experts", "num_local_experts")
    router = RouterConfig(experts, top_k, normalise=read.flag("norm_topk_prob", False), **router_losses(read))
    mixture = MoEConfig(router, read.integer("moe_intermediate_size"), **expert_room(read))
    dense = FeedForwardConfig(read.integer("intermediate_size", 6144))
    step, dense_layers = read.integer("decoder_sparse_step", 1), read.numbers("mlp_only_layers")
    feed_forwards = [
        dense if number in dense_layers or (number + 1) % step else mixture
        for number in range(read.integer("num_hidden_layers"))
    ]
    read.only("shared_expert_intermediate_size", 0, None)
    read.only("use_qk_norm", True, None)
    read.only("qkv_bias", bias, None)
    read.no_sliding_window()
    return read_decoder(read, attention, feed_forwards)


def _weight_map(config: DecoderConfig) -> WeightMap:
    from loong_llm.families.decoder_names import MoENames, decoder_weight_map

    expert = "mlp.experts.{expert}."
    names = MoENames(
        router="mlp.gate.weight",
        gate=f"{expert}gate_proj.weight",
        up=f"{expert}up_proj.weight",
        down=f"{expert}down_proj.weight",
    )
    return decoder_weight_map(config, moe=names)


QWEN3_MOE = Family(
    name="qwen3_moe",
    model_types=("qwen3_moe",),
    decoder_config=_decoder_config,
    weight_map=_weight_map,
    configs=files("loong_llm") / "configs" / "qwen3_moe",
    transformers_class="Qwen3MoeForCausalLM",
    optional_keys=(*ROUTER_KEYS, "decoder_sparse_step", "mlp_only_layers", "norm_topk_prob"),
    harmless_tensors=(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
)
