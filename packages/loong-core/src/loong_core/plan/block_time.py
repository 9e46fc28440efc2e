"""Seconds of one block and of the head, forward and backward, by what takes them.

Matrix products run at a fraction of the peak that falls where tiles do not fill the chip; attention at one that rises
with the length of the sequence; everything else moves bytes. The host launches operations ahead of the device, and is
counted apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from loong_core.nn.decoder_config import AttentionConfig, BlockConfig, FeedForwardConfig
from loong_core.nn.moe.config import MoEConfig
from loong_core.plan.activations import (
    ATTENTION,
    BLOCK,
    EXPERTS,
    FEED_FORWARD,
    block_held,
    keeps_exponentials,
)
from loong_core.plan.communication import Groups, Network
from loong_core.plan.kept import PLAIN, Treatment
from loong_core.plan.rates import Rates
from loong_core.plan.workload import FOUR_BIT, Share, Workload, block_parameters, table_parameters


class Seconds(dict[str, float]):
    """Seconds by what takes them (see `KINDS`), 0 where nothing does."""

    def __missing__(self, kind: str) -> float:
        return 0.0

    def add(self, others: Mapping[str, float], times: float = 1.0) -> None:
        """Add those of others, so many times."""
        for kind, seconds in others.items():
            self[kind] += seconds * times


KINDS = {
    "products": "matrix products",
    "attention": "attention",
    "experts": "products of experts",
    "permutation": "laying tokens out by expert",
    "head": "head and loss",
    "elementwise": "norms, rotation, activations, sums",
    "accumulate": "summing gradients of microbatches",
    "tensor": "communication among tensor ranks",
    "context": "communication among context ranks",
    "exchange": "exchange among expert ranks",
    "sharding": "gathering weights and scattering gradients (fsdp)",
    "bubble": "pipeline ranks waiting",
    "pipeline": "sends between pipeline ranks",
    "data": "reducing gradients, gathering weights",
    "optimizer": "optimizer",
    "offload": "copies to the host and back",
    "host": "the host launching operations",
}

HOST_LINK = 50e9
"""Bytes a second between an accelerator and its host's pinned memory, one direction: PCIe 5.0 of 16 lanes."""
_HOST_AGAIN = {BLOCK: 0.4, ATTENTION: 0.2, FEED_FORWARD: 0.2, EXPERTS: 0.1}
"""What repeating a part's forward adds to the launches of a block, relative to forward and backward."""

TILE_ROWS, TILE_COLUMNS, TILES_AT_ONCE = 128, 256, 132
FLOAT32 = 4


@dataclass(frozen=True)
class Passage:
    """One forward and one backward of a part of the model.

    Attributes:
        forward, backward: seconds of the device.
        host: seconds in which the host launches both.
    """

    forward: Seconds
    backward: Seconds
    host: float


@dataclass(frozen=True)
class Timer:
    """Times operations of one workload on one layout.

    Attributes:
        work: the run.
        share: what a rank has of a microbatch.
        network: links.
        groups: who communicates.
        rates: measured constants.
    """

    work: Workload
    share: Share
    network: Network
    groups: Groups
    rates: Rates

    def block(self, block: BlockConfig, treatment: Treatment = PLAIN) -> Passage:
        """One block; what is recomputed counts as backward, copies to the host where the block does not hide them."""
        forward, backward = Seconds(), Seconds()
        host = self.rates.host_block
        parts = {part: Seconds() for part in (ATTENTION, FEED_FORWARD, EXPERTS)}
        self._attention(block.mixer, parts[ATTENTION], backward)
        if isinstance(block.feed_forward, FeedForwardConfig):
            self._feed_forward(block.feed_forward.intermediate_size, parts[FEED_FORWARD], backward)
        else:
            host += self.rates.host_experts
            self._mixture(block.feed_forward, parts[FEED_FORWARD], backward)
            parts[EXPERTS]["experts"] = parts[FEED_FORWARD]["experts"]
        forward.add(parts[ATTENTION])
        forward.add(parts[FEED_FORWARD])
        parameters = block_parameters(block, self.work.model.hidden_size, self.share)
        backward["accumulate"] += self._accumulated(parameters.all * self.work.trained)
        for part in treatment.recomputed:
            backward.add(forward if part == BLOCK else parts[part])
            host *= 1 + _HOST_AGAIN[part]
        if treatment.offloaded:
            held = block_held(block, self.work.model.hidden_size, self.share, self.work.imbalance)
            copying = treatment.kept(held) / HOST_LINK
            for passage in (forward, backward):
                passage["offload"] += max(0.0, copying - sum(passage.values()))
        return Passage(forward, backward, host)

    def head(self) -> Passage:
        """Final norm, logits, loss."""
        share, model, rates = self.share, self.work.model, self.rates
        rows = -(-model.vocab_size // share.tensor)
        logits = share.tokens * rows
        forward, backward = Seconds(), Seconds()
        self._norm(forward, backward)
        self._gather_tokens(forward, backward)
        memory = self.network.cluster.accelerator.memory
        again = 0 if keeps_exponentials(share.tokens, rows, share.element, memory) else 1
        product = self._product(share.tokens, rows, model.hidden_size, rates.head_product)
        moving = self._bytes(logits * (FLOAT32 + share.element))
        forward["head"] += product + moving
        backward["head"] += (1 + self._towards_weights + again) * product + again * moving
        backward["accumulate"] += self._accumulated(table_parameters(model, share) * self.work.trained)
        return Passage(forward, backward, 0.0)

    def embedding(self) -> Passage:
        """Looking tokens up, and adding their gradients to the rows of the table's sum."""
        share, model = self.share, self.work.model
        forward, backward = Seconds(), Seconds()
        hidden = share.tokens * model.hidden_size * share.element
        forward["elementwise"] += self._bytes(2 * hidden)
        forward["tensor"] += self.network.gather(hidden, self.groups.tensor)
        backward["tensor"] += self.network.gather(hidden, self.groups.tensor)
        backward["elementwise"] += self._bytes(hidden + 2 * share.tokens * model.hidden_size * FLOAT32)
        return Passage(forward, backward, 0.0)

    def _attention(self, config: AttentionConfig, forward: Seconds, backward: Seconds) -> None:
        share, hidden, element = self.share, self.work.model.hidden_size, self.share.element
        query, key = share.query_width(config), share.key_width(config)
        tokens = share.tokens
        self._norm(forward, backward)
        self._gather_tokens(forward, backward)
        self._linear(tokens, query + 2 * key, hidden, forward, backward)
        heads = tokens * (query + key) * element
        # Norms and rotation are one pass; backward writes the gradient of the values beside those of both.
        forward["elementwise"] += self._bytes(2 * heads)
        backward["elementwise"] += self._bytes((2 + config.qk_norm) * heads + 2 * tokens * key * element)
        self._softmax_attention(config, forward, backward)
        self._linear(tokens, hidden, query, forward, backward)
        self._sum_tokens(forward, backward)

    def _softmax_attention(self, config: AttentionConfig, forward: Seconds, backward: Seconds) -> None:
        """Two products forward over on average half of the sequence, five backward."""
        share, rates, length = self.share, self.rates, self.work.sequence_length * self.work.attended
        query, tokens = share.query_width(config), share.tokens
        operations = 2.0 * tokens * length * query
        peak = self._peak() * (rates.packed_attention if self.work.packed else 1.0)
        seen = length / share.ring  # the keys that one call attends to
        each = operations / peak / rates.attention_forward * (1 + rates.attention_forward_ramp / seen)
        back = 2.5 * operations / peak / rates.attention_backward * (1 + rates.attention_backward_ramp / seen)
        forward["attention"] += each + rates.kernel
        backward["attention"] += back + rates.kernel
        if share.ulysses > 1:
            exchanged = tokens * (share.exchanged_width(config) + query) * share.element
            seconds = self.network.exchange(exchanged, self.groups.ulysses) + self._bytes(4 * exchanged)
            forward["context"] += seconds
            backward["context"] += seconds
        if share.ring > 1:
            # While one part is computed the next keys and values arrive, in backward with their float32 gradients.
            keys = 2 * tokens * share.key_width(config)
            arriving = self.network.pass_on(keys * share.element, self.groups.ring)
            returning = self.network.pass_on(keys * (share.element + FLOAT32), self.groups.ring)
            joining = self._bytes(4 * tokens * query * FLOAT32)
            forward["context"] += (share.ring - 1) * (max(0.0, arriving - each / share.ring) + joining)
            backward["context"] += (share.ring - 1) * (max(0.0, returning - back / share.ring) + joining)

    def _feed_forward(self, width: int, forward: Seconds, backward: Seconds) -> None:
        share, hidden = self.share, self.work.model.hidden_size
        width //= share.tensor
        self._norm(forward, backward)
        self._gather_tokens(forward, backward)
        self._gated(share.tokens, width, hidden, forward, backward)
        self._sum_tokens(forward, backward)

    def _gated(self, tokens: int, width: int, hidden: int, forward: Seconds, backward: Seconds) -> None:
        self._linear(tokens, 2 * width, hidden, forward, backward)
        product = tokens * width * self.share.element
        forward["elementwise"] += self._bytes(3 * product)
        backward["elementwise"] += self._bytes(5 * product)
        self._linear(tokens, hidden, width, forward, backward)

    def _mixture(self, config: MoEConfig, forward: Seconds, backward: Seconds) -> None:
        share, rates, hidden, router = self.share, self.rates, self.work.model.hidden_size, config.router
        own, element = share.local_tokens, share.element
        self._norm(forward, backward)
        scores = self._operations(2.0 * own * hidden * router.num_experts, self._float32())
        forward["elementwise"] += scores + self._bytes(3 * own * hidden * element)
        backward["elementwise"] += 2 * scores + self._bytes(6 * own * hidden * element)
        chosen = own * router.top_k * hidden * element
        moving = self._bytes(rates.permutation_passes * chosen)
        forward["permutation"] += moving / 3
        backward["permutation"] += moving * 2 / 3
        if share.expert > 1 or share.expert_tensor > 1:
            both = 2 * self.network.exchange(chosen, self.groups.expert)
            pooled = 2 * self.network.gather(chosen * share.expert_tensor, self.groups.expert_tensor)
            again = self._bytes(4 * chosen * share.expert_tensor)
            forward["exchange"] += both + pooled + again + rates.exchange_wait
            backward["exchange"] += both + pooled + again
        rows = share.expert_rows(config, self.work.imbalance)
        width, experts = config.expert_size // share.expert_tensor, router.num_experts // share.expert
        for columns, depth in ((2 * width, hidden), (hidden, width)):
            forward["experts"] += self._grouped(rows, experts, columns, depth, rates.grouped_product)
            backward["experts"] += self._grouped(rows, experts, depth, columns, rates.grouped_product)
            operations = 2.0 * rows * columns * depth
            towards_weights = self._operations(operations, self._peak() * rates.grouped_weight_product)
            backward["experts"] += towards_weights * self._towards_weights
        forward["elementwise"] += self._bytes(3 * rows * width * element)
        backward["elementwise"] += self._bytes(5 * rows * width * element)
        if config.shared_size:
            self._gather_tokens(forward, backward)
            self._gated(share.tokens, config.shared_size // share.tensor, hidden, forward, backward)
            self._sum_tokens(forward, backward)

    def _norm(self, forward: Seconds, backward: Seconds) -> None:
        """A norm and the sum before it, in one pass."""
        size = self.share.local_tokens * self.work.model.hidden_size * self.share.element
        forward["elementwise"] += self._bytes(4 * size)
        backward["elementwise"] += self._bytes(5 * size)

    def _gather_tokens(self, forward: Seconds, backward: Seconds) -> None:
        """Tokens of the tensor ranks joined; in backward their gradients summed."""
        seconds = self.network.gather(self._hidden_bytes(), self.groups.tensor)
        forward["tensor"] += seconds
        backward["tensor"] += seconds

    _sum_tokens = _gather_tokens  # the transpose moves as many bytes

    def _hidden_bytes(self) -> float:
        return self.share.tokens * self.work.model.hidden_size * self.share.element

    @property
    def _towards_weights(self) -> float:
        """Which part of the products that give weights' gradients is made: frozen weights have none."""
        return min(1.0, self.work.trained)

    def _linear(self, rows: int, columns: int, depth: int, forward: Seconds, backward: Seconds) -> None:
        rate = self.rates.product
        forward["products"] += self._product(rows, columns, depth, rate)
        backward["products"] += self._product(rows, depth, columns, rate)
        backward["products"] += self._product(columns, depth, rows, rate) * self._towards_weights
        if self.work.four_bit:
            written_out = self._bytes(columns * depth * (FOUR_BIT + self.share.element))
            forward["elementwise"] += written_out
            backward["elementwise"] += written_out

    def _product(self, rows: int, columns: int, depth: int, fraction: float) -> float:
        """`[rows, depth] x [depth, columns]`: whole waves of tiles, or the time that its bytes take."""
        tiles = ceil(rows / TILE_ROWS) * ceil(columns / TILE_COLUMNS)
        filled = tiles / TILES_AT_ONCE / ceil(tiles / TILES_AT_ONCE)
        filled = max(filled, min(1.0, rows * columns / (TILES_AT_ONCE * 128 * 128)) * 0.7)  # smaller tiles, split sums
        operations = 2.0 * rows * columns * depth
        moved = (rows * depth + depth * columns + rows * columns) * self.share.element
        peak = self._peak() * fraction if self.share.element == 2 else self._float32()
        return max(operations / (peak * filled), self._bytes(moved)) + self.rates.kernel

    def _grouped(self, rows: float, experts: int, columns: int, depth: int, fraction: float) -> float:
        """As `_product` for each expert; the last tile of rows of each is half empty on average."""
        padded = rows + experts * TILE_ROWS / 2
        operations = 2.0 * padded * columns * depth
        moved = (rows * (depth + columns) + experts * depth * columns) * self.share.element
        return max(self._operations(operations, self._peak() * fraction), self._bytes(moved)) + self.rates.kernel

    def _accumulated(self, parameters: float) -> float:
        """Adding a microbatch's gradients to their sum, which the products towards the weights do as they write."""
        return self._bytes(parameters * 2 * FLOAT32, self.rates.accumulate)

    def _operations(self, operations: float, rate: float) -> float:
        return operations / rate + self.rates.kernel

    def _bytes(self, moved: float, fraction: float | None = None) -> float:
        """Moving so many bytes to and from memory."""
        reached = self.rates.elementwise if fraction is None else fraction
        return moved / (self.network.cluster.accelerator.memory_bandwidth * reached)

    def _peak(self) -> float:
        accelerator = self.network.cluster.accelerator
        return accelerator.bf16 if self.share.element == 2 else accelerator.fp32

    def _float32(self) -> float:
        return self.network.cluster.accelerator.fp32 * self.rates.float32_product
