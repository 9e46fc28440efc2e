"""Bytes that a microbatch holds between forward and backward, and those that come and go within backward.

Each line follows a line of `loong_core.nn`: what an operation saves for its gradient is counted where the operation
is. Tensors that two operations save are counted once. Rows that depend on the router are taken as even (see
`Workload.imbalance`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil

from loong_core.nn.decoder_config import AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig
from loong_core.nn.moe.config import MoEConfig
from loong_core.plan.workload import Share

FLOAT32, INT64 = 4, 8

LOGITS_BUDGET = 1 << 29
"""Bytes of float32 logits that the cross-entropy holds at once (`loong_kernels`' ACCELERATOR_BUDGET)."""
FEWEST_ROWS, ROW_MULTIPLE = 4096, 128
KEPT_SHARE, KEPT_MULTIPLE = 28, 64
"""The cross-entropy keeps exponentials of its logits for backward if they take at most one part in so many of the
device's memory; else it computes logits twice."""


BLOCK, ATTENTION, FEED_FORWARD, EXPERTS = "", ".attention", ".feed_forward", ".feed_forward.experts"
"""Parts of a block that a plan knows, by what follows the block's name in theirs."""


@dataclass(frozen=True)
class Held:
    """Bytes of one microbatch.

    Attributes:
        saved: kept from forward to backward.
        peak: the most that backward holds at once beyond `saved`; less than nothing where it only frees.
        parts: what of `saved` each part of a block that can be recomputed by itself does not keep then.
    """

    saved: float
    peak: float
    parts: Mapping[str, float] = field(default_factory=dict)


class _Backward:
    """Adds up what backward allocates and frees, in order, and keeps the most."""

    def __init__(self) -> None:
        self.now = self.peak = 0.0

    def take(self, *sizes: float) -> None:
        self.now += sum(sizes)
        self.peak = max(self.peak, self.now)

    def free(self, *sizes: float) -> None:
        self.now -= sum(sizes)


def block_held(block: BlockConfig, hidden: int, share: Share, imbalance: float) -> Held:
    """One block without recomputation."""
    backward = _Backward()
    backward.take(share.local_tokens * hidden * share.element)  # the gradient that arrives
    parts: dict[str, float] = {}
    order = 0.0
    if isinstance(block.feed_forward, FeedForwardConfig):
        saved = _feed_forward(block.feed_forward.intermediate_size, hidden, share, backward)
        parts[FEED_FORWARD] = saved - _normed(hidden, share)
    else:
        saved = _mixture(block.feed_forward, hidden, share, imbalance, backward)
        order = share.local_tokens * block.feed_forward.router.top_k * 2 * INT64  # operations hold it themselves
        parts[FEED_FORWARD] = saved - _normed(hidden, share) - order
        rows = share.expert_rows(block.feed_forward, imbalance)
        parts[EXPERTS] = 3 * rows * block.feed_forward.expert_size / share.expert_tensor * share.element
    attention = _attention(block.mixer, hidden, share, backward)
    parts[ATTENTION] = attention - _normed(hidden, share)
    saved += attention
    parts[BLOCK] = saved - block_input(hidden, share) - order
    return Held(saved, backward.peak, parts)


def block_input(hidden: int, share: Share) -> float:
    """What is kept of a block that is recomputed."""
    return share.local_tokens * hidden * share.element


def _normed(hidden: int, share: Share) -> float:
    """A norm's input, and what the matrix after it saves: its output, which tensor ranks gather anew in backward."""
    return 2 * share.local_tokens * hidden * share.element


def _attention(config: AttentionConfig, hidden: int, share: Share, backward: _Backward) -> float:
    tokens, element = share.tokens, share.element
    query, key = share.query_width(config), share.key_width(config)
    whole = tokens * hidden * element
    projected = tokens * (query + 2 * key) * element  # one tensor: the norms save q and k in it, attention v
    rotated = tokens * (query + key) * element
    mixed = tokens * query * element
    log_sums = tokens * query // config.head_dim * FLOAT32
    saved = _normed(hidden, share) + projected + rotated + mixed + log_sums
    gathered = whole if share.tensor > 1 else 0
    if config.num_kv_heads < share.tensor:
        # Two matrices read the gathered tokens, and these are kept.
        saved, gathered = saved + whole - share.local_tokens * hidden * element, 0
    if share.ulysses > 1:
        # What was exchanged is saved in place of what was rotated, and the result on either side of its exchange.
        exchanged = tokens * share.exchanged_width(config) * element
        saved += exchanged - rotated + mixed - (0 if config.qk_norm else projected)

    backward.take(whole if share.tensor > 1 else 0, mixed)
    backward.take(projected, tokens * query * FLOAT32)  # the queries' gradient is summed in float32
    backward.free(tokens * query * FLOAT32, mixed, mixed, rotated, log_sums)
    backward.take(projected)
    backward.free(projected)
    backward.take(whole, gathered)
    backward.free(gathered)
    return saved


def _feed_forward(width: int, hidden: int, share: Share, backward: _Backward) -> float:
    tokens, element, width = share.tokens, share.element, width // share.tensor
    whole = tokens * hidden * element
    gate_up, product = 2 * tokens * width * element, tokens * width * element
    gathered = whole if share.tensor > 1 else 0
    backward.take(gathered, product)
    backward.free(gathered, product)  # what was saved of the product goes, its gradient stays
    backward.take(gate_up)
    backward.free(gate_up, product)
    backward.take(whole, gathered)
    backward.free(gate_up, whole, gathered)
    return _normed(hidden, share) + gate_up + product


def _mixture(config: MoEConfig, hidden: int, share: Share, imbalance: float, backward: _Backward) -> float:
    element, own, router = share.element, share.local_tokens, config.router
    chosen = own * router.top_k  # rows that leave this rank and come back
    rows = share.expert_rows(config, imbalance)  # rows of this rank's experts
    width = config.expert_size / share.expert_tensor
    away = share.expert > 1 or share.expert_tensor > 1

    stream = own * hidden * element
    routed = own * hidden * FLOAT32  # the router's input; its weight is widened too
    scores = own * router.num_experts * FLOAT32 * (2 if router.z_coefficient else 1)
    choices = chosen * (2 * INT64 + 3 * FLOAT32 + 2 * INT64)  # indices, weights, and the order of the rows
    arrived = rows * hidden * element
    gate_up, product = 2 * rows * width * element, rows * width * element
    returned = chosen * hidden * element
    saved = stream + routed + scores + choices + arrived + gate_up + product + returned
    saved += router.num_experts * hidden * FLOAT32 if element < FLOAT32 else 0

    backward.take(returned)
    backward.free(returned)  # what was saved of the results goes, their gradient stays
    gradient = returned
    if away:
        backward.take(arrived)
        backward.free(returned)
        gradient = arrived
    backward.take(product)
    backward.free(gradient, product)
    backward.take(gate_up)
    backward.free(product, gate_up)
    backward.take(arrived)
    backward.free(gate_up, arrived)
    if away:
        backward.take(returned)
        backward.free(arrived)
    backward.take(stream, routed)
    backward.free(returned, routed, routed)
    if config.shared_size:
        saved += _feed_forward(config.shared_size, hidden, share, backward) - stream
    return saved


def keeps_exponentials(tokens: int, rows: int, element: int, device_memory: float) -> bool:
    """Whether the cross-entropy keeps what backward needs of the logits."""
    return tokens * _padded(rows) * element <= device_memory // KEPT_SHARE


def logits_chunk(tokens: int, rows: int) -> tuple[int, int]:
    """Tokens and vocabulary rows whose logits are held at once where they are computed twice."""
    affordable = LOGITS_BUDGET // FLOAT32
    most = max(affordable // max(tokens, 1), min(FEWEST_ROWS, rows))
    chunks = max(1, ceil(rows / max(most, 1)))
    chunk = max(1, min(ceil(rows / chunks / ROW_MULTIPLE) * ROW_MULTIPLE, rows))
    blocks = max(1, ceil(tokens * chunk / affordable))
    return ceil(tokens / blocks), chunk


def head_held(model: DecoderConfig, share: Share, device_memory: float) -> Held:
    """Final norm and head with its cross-entropy; the peak may be in forward."""
    tokens, element, hidden = share.tokens, share.element, model.hidden_size
    rows = ceil(model.vocab_size / share.tensor)
    saved = _normed(hidden, share) + tokens * (FLOAT32 + 3 * INT64)
    # The gradient of the hidden states in float32, and their scaled copy, on the way to the narrow ones.
    narrowing = tokens * hidden * (FLOAT32 + 2 * element)
    if keeps_exponentials(tokens, rows, element, device_memory):
        logits = max(1, LOGITS_BUDGET // (FLOAT32 * rows)) * rows * FLOAT32
        return Held(saved + tokens * _padded(rows) * element, max(min(logits, tokens * rows * FLOAT32), narrowing))
    chunk_tokens, chunk_rows = logits_chunk(tokens, rows)
    logits = chunk_tokens * chunk_rows * FLOAT32
    their_gradient = chunk_tokens * chunk_rows * element if element < FLOAT32 else 0
    return Held(saved, logits + their_gradient + 2 * tokens * hidden * FLOAT32)


def _padded(rows: int) -> int:
    return ceil(rows / KEPT_MULTIPLE) * KEPT_MULTIPLE
