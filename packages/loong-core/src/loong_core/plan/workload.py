"""What is trained, and what one rank of a layout has of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd
from typing import Literal

from loong_core.nn.decoder_config import AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig
from loong_core.nn.moe.config import MoEConfig
from loong_core.nn.parts import NOTHING, Parts
from loong_core.parallel.layout import Layout

FOUR_BIT = 0.5 + 4 / 64
"""Bytes of a number in 4 bits, with its part of a float32 scale for 64 (`loong_core.nn.four_bit`)."""


@dataclass(frozen=True)
class Workload:
    """A run, as far as memory and time depend on it.

    Attributes:
        model: the decoder.
        sequence_length: tokens of a sequence.
        global_batch_size: sequences of a step.
        micro_batch_size: sequences of one forward and backward of a data rank.
        precision: of forward and backward; gradients and main weights are float32.
        packed: whether attention stays within documents, which another kernel computes.
        attended: pairs of tokens that attention looks at, relative to whole sequences; less where documents are short.
        engine: `megatron` shares the optimizer's state among data ranks, `fsdp` weights and gradients as well.
        recompute: parts of which the input alone is kept, and whose forward is repeated in backward.
        offload: parts that keep what they need for backward on the host.
        imbalance: rows of the busiest expert rank relative to an even load.
        trained: parameters that have gradients and optimizer state, relative to the model's; spread evenly over it.
        moments: what AdamW's two means are kept in.
        added: parameters beyond the model's own, relative to these: adapters, which are weights too.
        four_bit: whether the frozen matrices of the blocks are in 4 bits.
    """

    model: DecoderConfig
    sequence_length: int
    global_batch_size: int
    micro_batch_size: int = 1
    precision: Literal["bf16", "fp32"] = "bf16"
    packed: bool = False
    attended: float = 1.0
    engine: Literal["megatron", "fsdp"] = "megatron"
    recompute: Parts = NOTHING
    offload: Parts = NOTHING
    imbalance: float = 1.1
    trained: float = 1.0
    moments: Literal["bf16", "fp32"] = "fp32"
    added: float = 0.0
    four_bit: bool = False

    @property
    def element(self) -> int:
        """Bytes of an activation, and of a weight used in forward."""
        return 2 if self.precision == "bf16" else 4

    @property
    def moment(self) -> int:
        """Bytes of one of AdamW's means of one parameter."""
        return 2 if self.moments == "bf16" else 4

    @property
    def step_tokens(self) -> int:
        """Tokens of a step."""
        return self.global_batch_size * self.sequence_length

    @cached_property
    def flops_per_token(self) -> float:
        """Model operations of a token, forward and backward: no gradients of what is frozen, nothing recomputed."""
        spared = 2.0 * self.model.matmul_parameters() * (1 - min(1.0, self.trained))
        return self.model.flops_per_token(self.sequence_length) - spared

    def microbatches(self, data_ranks: int) -> int:
        """Microbatches of a data rank in a step; 0 where the global batch does not divide."""
        together = self.micro_batch_size * data_ranks
        return 0 if self.global_batch_size % together else self.global_batch_size // together

    def with_micro_batch(self, size: int) -> Workload:
        """The same with other microbatches."""
        return replace(self, micro_batch_size=size)


@dataclass(frozen=True)
class Share:
    """One microbatch and one block, as the ranks of a layout share them.

    Attributes:
        tokens: of a microbatch on each tensor rank between gathering and summing.
        local_tokens: between the matrices, where tensor ranks share them.
        element: bytes of an activation.
        tensor, ulysses, ring, expert, expert_tensor: degrees.
    """

    tokens: int
    local_tokens: int
    element: int
    tensor: int
    ulysses: int
    ring: int
    expert: int
    expert_tensor: int

    @staticmethod
    def of(work: Workload, layout: Layout) -> Share:
        """What `layout` makes of a microbatch of `work`."""
        tokens = -(-work.micro_batch_size * work.sequence_length // layout.context)
        return Share(
            tokens=tokens,
            local_tokens=-(-tokens // layout.tensor),
            element=work.element,
            tensor=layout.tensor,
            ulysses=layout.ulysses,
            ring=layout.ring,
            expert=layout.expert,
            expert_tensor=layout.expert_tensor,
        )

    def query_width(self, attention: AttentionConfig) -> int:
        """Columns of this rank's queries."""
        return attention.num_heads // self.tensor * attention.head_dim

    def key_width(self, attention: AttentionConfig) -> int:
        """Columns of this rank's keys; values have as many. Heads fewer than tensor ranks are held by several."""
        return max(1, attention.num_kv_heads // self.tensor) * attention.head_dim

    def exchanged_width(self, attention: AttentionConfig) -> int:
        """Columns of queries, keys and values that Ulysses ranks exchange; heads fewer than ranks travel in copies."""
        kv_heads = self.key_width(attention) // attention.head_dim
        copies = self.ulysses // gcd(self.ulysses, kv_heads)
        return self.query_width(attention) + 2 * copies * self.key_width(attention)

    def expert_rows(self, mixture: MoEConfig, imbalance: float) -> float:
        """Rows of the busiest rank's experts: each token once for each expert that it chose."""
        rows = self.local_tokens * mixture.router.top_k * self.expert_tensor
        return rows * (imbalance if self.expert > 1 else 1.0)


@dataclass(frozen=True)
class Parameters:
    """How many parameters a rank has, those of experts apart, since other ranks hold the same of them."""

    dense: float = 0.0
    experts: float = 0.0

    def __add__(self, other: Parameters) -> Parameters:
        return Parameters(self.dense + other.dense, self.experts + other.experts)

    def times(self, count: float) -> Parameters:
        """So many of them."""
        return Parameters(self.dense * count, self.experts * count)

    @property
    def all(self) -> float:
        """Both kinds together."""
        return self.dense + self.experts


def block_parameters(block: BlockConfig, hidden: int, share: Share) -> Parameters:
    """A rank's parameters of one block."""
    mixer, feed_forward = block.mixer, block.feed_forward
    query, keys = share.query_width(mixer), 2 * share.key_width(mixer)
    attention = hidden * (query + keys) + query * hidden
    attention += mixer.qkv_bias * (query + keys) + mixer.output_bias * hidden + mixer.qk_norm * 2 * mixer.head_dim
    norms = 2 * hidden
    if isinstance(feed_forward, FeedForwardConfig):
        width = feed_forward.intermediate_size // share.tensor
        biases = feed_forward.bias * (2 * width + hidden)
        return Parameters(attention + norms + 3 * hidden * width + biases)
    router = feed_forward.router
    shared = 3 * hidden * feed_forward.shared_size // share.tensor + feed_forward.shared_gate * hidden
    experts = 3 * hidden * feed_forward.expert_size / share.expert_tensor * router.num_experts / share.expert
    return Parameters(attention + norms + hidden * router.num_experts + shared, experts)


def table_parameters(model: DecoderConfig, share: Share) -> int:
    """A tensor rank's part of the embedding's table, or of the head's."""
    return -(-model.vocab_size // share.tensor) * model.hidden_size
