"""The products of a decoder's blocks, as a table of measurements knows them."""

from __future__ import annotations

from loong_core.nn.decoder_config import DecoderConfig
from loong_core.nn.moe.config import MoEConfig
from loong_core.precision.table import Work


def works_of(config: DecoderConfig) -> dict[str, Work]:
    """Every different product of the blocks on one rank, by the name of its layer (of the first block that has it)."""
    hidden = config.hidden_size
    found: dict[str, Work] = {}
    for block in config.blocks:
        mixer, feed_forward = block.mixer, block.feed_forward
        query = mixer.num_heads * mixer.head_dim
        own = {
            "attention.qkv": Work("linear", query + 2 * mixer.num_kv_heads * mixer.head_dim, hidden),
            "attention.output": Work("linear", hidden, query),
        }
        if isinstance(feed_forward, MoEConfig):
            experts = feed_forward.router.num_experts
            own["feed_forward.experts"] = Work("experts", feed_forward.expert_size, hidden, experts)
            if feed_forward.shared_size:
                own |= _feed_forward("feed_forward.shared", hidden, feed_forward.shared_size)
        else:
            own |= _feed_forward("feed_forward", hidden, feed_forward.intermediate_size)
        for name, work in own.items():
            if work not in found.values():
                found[name if name not in found else f"{name}, {work}"] = work
    return found


def rows_of(config: DecoderConfig, work: Work, tokens: int) -> int:
    """Rows that a layer sees of so many tokens: of experts, each token once for every expert that it goes to."""
    if work.kind == "linear":
        return tokens
    return tokens * max(mixture.router.top_k for mixture in config.mixtures)


def _feed_forward(name: str, hidden: int, width: int) -> dict[str, Work]:
    return {f"{name}.gate_up": Work("linear", 2 * width, hidden), f"{name}.down": Work("linear", hidden, width)}
