"""Small decoders and clusters that tests of planning share."""

from __future__ import annotations

from dataclasses import replace

from loong_core.nn.decoder_config import (
    AttentionConfig,
    BlockConfig,
    DecoderConfig,
    FeedForwardConfig,
    RotaryConfig,
)
from loong_core.nn.moe.config import MoEConfig, RouterConfig
from loong_core.plan.devices import ACCELERATORS, Cluster
from loong_core.plan.rates import measured_rates
from loong_core.plan.search import Search
from loong_core.plan.workload import Workload

TOKENS = 16
_ATTENTION = AttentionConfig(4, 4, 16, RotaryConfig(1e6, 16), qk_norm=True)


def _decoder(block: BlockConfig, layers: int = 2) -> DecoderConfig:
    return DecoderConfig(64, 512, (block,) * layers, 1e-6)


def _heads(heads: int, kv_heads: int) -> AttentionConfig:
    return AttentionConfig(heads, kv_heads, 128, RotaryConfig(1e6, 128), qk_norm=True)


DENSE = _decoder(BlockConfig(_ATTENTION, FeedForwardConfig(160)))
PLAIN = _decoder(BlockConfig(replace(_ATTENTION, qk_norm=False), FeedForwardConfig(160)))
MIXTURE = _decoder(BlockConfig(_ATTENTION, MoEConfig(RouterConfig(8, 2), 48)))
TOYS = {"dense": DENSE, "without query and key norms": PLAIN, "mixture": MIXTURE}

EIGHT_BILLION = DecoderConfig(
    4096,
    151_936,
    (BlockConfig(_heads(32, 8), FeedForwardConfig(12_288)),) * 36,
    1e-6,
)
THIRTY_BILLION = DecoderConfig(
    2048,
    151_936,
    (
        BlockConfig(
            AttentionConfig(32, 4, 128, RotaryConfig(1e6, 128), qk_norm=True), MoEConfig(RouterConfig(128, 8), 768)
        ),
    )
    * 48,
    1e-6,
)


def with_layers(config: DecoderConfig, layers: int) -> DecoderConfig:
    """The same with another number of layers."""
    return replace(config, blocks=config.blocks[:1] * layers)


def work(model: DecoderConfig, **changes: object) -> Workload:
    """Sixty-four sequences of 4096 tokens a step."""
    return replace(Workload(model, sequence_length=4096, global_batch_size=64), **changes)  # type: ignore[arg-type]


def cluster(size: int, per_node: int = 8, device: str = "h200") -> Cluster:
    """Accelerators in machines of eight."""
    return Cluster(ACCELERATORS[device], size, min(size, per_node))


def search(workload: Workload, on: Cluster) -> Search:
    """With the rates that are shipped, and every layout served that divides the ranks and the model."""
    model = workload.model
    numbers = {"heads": model.attention.num_heads, "kv_heads": model.attention.num_kv_heads, "layers": model.num_layers}
    experts = model.mixtures[0].router.num_experts if model.mixtures else 0
    return Search(
        workload, on, lambda layout, ranks: layout.faults(ranks, **numbers, experts=experts), measured_rates()
    )
