"""InternLM2 and 2.5 (arXiv:2403.17297): Llama's layers, with q, k and v in one tensor, group by group.

`wqkv` holds for each key-value head the queries that use it, then the key, then the value. The positions that dynamic
NTK scaling stretches lie beyond `max_position_embeddings`, where no run goes.
"""

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
    read = ConfigReader(hf, "internlm2")
    hidden, heads = read.integer("hidden_size"), read.integer("num_attention_heads")
    if hidden % heads:
        read.fault("num_attention_heads", f"{heads} does not divide hidden_size {hidden}")
    bias = read.flag("bias", True)
    attention = read_attention(read, qkv_bias=bias, output_bias=bias)
    return read_decoder(read, attention, FeedForwardConfig(read.integer("intermediate_size")))


def _weight_map(config: DecoderConfig) -> WeightMap:
    from loong_llm.families.decoder_names import DecoderNames, decoder_weight_map

    names = DecoderNames(
        embedding="model.tok_embeddings", head="output", attention_norm="attention_norm", qkv=("attention.wqkv",),
        grouped=True, output="attention.wo", feed_forward_norm="ffn_norm", gate="feed_forward.w1",
        up="feed_forward.w3", down="feed_forward.w2",
    )  # fmt: skip
    return decoder_weight_map(config, names)


INTERNLM2 = Family(
    name="internlm2",
    model_types=("internlm2",),
    decoder_config=_decoder_config,
    weight_map=_weight_map,
    configs=files("loong_llm") / "configs" / "internlm2",
    optional_keys=("bias",),
    harmless_tensors=(r"model\.layers\.\d+\.attention\.rotary_emb\.inv_freq",),
    tied_tensors={"output.weight": "model.tok_embeddings.weight"},
)
