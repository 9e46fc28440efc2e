"""Memory of a rank: weights, gradients, optimizer, activations, and what comes and goes.

A parameter takes 2 bytes for its bfloat16 weight (4 in float32), 4 for the float32 buffer in which gradients are summed
and communicated, and, shared among data ranks, 4 for the main weight (bfloat16 runs only) and 8 for AdamW's moments (4
where they are kept in bfloat16). Activations are counted in `activations`; with a pipeline
several microbatches are on their way at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loong_core.nn.decoder_config import BlockConfig, DecoderConfig, FeedForwardConfig
from loong_core.parallel.layout import Layout
from loong_core.plan.activations import FLOAT32, Held, block_held, block_input, head_held
from loong_core.plan.devices import GIB, Cluster
from loong_core.plan.kept import treated_blocks
from loong_core.plan.workload import FOUR_BIT, Parameters, Share, Workload, block_parameters, table_parameters

RUNTIME = 0.75 * GIB
"""What the device's runtime takes before the first tensor: context, kernels."""
COMMUNICATION = 1.5 * GIB
"""Buffers of the communication library, outside the allocator, where there are several ranks."""
FRAGMENTATION = 0.03
"""Part of what is allocated that lies between tensors and serves none."""

DOUBT = 0.05
"""How far below the plan a real peak may be before a run is refused that might have fitted after all."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank.

    Attributes:
        weights: used in forward; those that an fsdp rank gathers are in `temporary`.
        gradients: of all microbatches, summed.
        optimizer: this rank's share of main weights and moments.
        activations: of the microbatches on their way.
        temporary: the most beyond these at any moment: logits, gradients on their way, workspaces.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    temporary: float

    @property
    def peak(self) -> float:
        """The most that is allocated at once, as the device's allocator counts it."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.temporary

    def needed(self, ranks: int) -> float:
        """What a device must have for this peak, with what lies outside the allocator."""
        return self.peak * (1 + FRAGMENTATION) + RUNTIME + (COMMUNICATION if ranks > 1 else 0)

    @property
    def least(self) -> float:
        """What a device must have beyond doubt."""
        return self.peak * (1 - DOUBT) + RUNTIME


@dataclass(frozen=True)
class Stage:
    """What pipeline ranks hold that hold alike.

    Attributes:
        first: number of the first of these ranks, whose activations are the most.
        count: how many they are.
        numbers: of the first one's blocks, in the order of the model.
        blocks: kinds of blocks, and how many of each.
        embedding: whether the rank embeds.
        head: whether it computes the loss.
        chunks: virtual stages.
    """

    first: int
    count: int
    numbers: tuple[int, ...]
    blocks: tuple[tuple[BlockConfig, int], ...]
    embedding: bool
    head: bool
    chunks: int

    @property
    def layers(self) -> int:
        """How many blocks."""
        return sum(count for _, count in self.blocks)

    def parameters(self, model: DecoderConfig, share: Share) -> Parameters:
        """This rank's part of them."""
        total = Parameters(model.hidden_size if self.head else 0)
        tables = self.embedding + self.head
        if model.tie_embeddings and tables == 2:
            tables = 1
        total += Parameters(tables * table_parameters(model, share))
        for block, count in self.blocks:
            total += block_parameters(block, model.hidden_size, share).times(count)
        return total


def pipeline_stages(model: DecoderConfig, layout: Layout, *, apart: bool = False) -> list[Stage]:
    """What the pipeline ranks hold, each kind once; each rank where they are to be kept `apart`."""
    held: dict[tuple[object, ...], list[int]] = {}
    numbers_of = [
        tuple(number for chunk in chunks for number in chunk)
        for chunks in layout.stage_layers(model.num_layers, model.layer_costs())
    ]
    for rank, numbers in enumerate(numbers_of):
        blocks = Counter(model.blocks[number] for number in numbers)
        key = (tuple(blocks.items()), rank == 0, rank == layout.pipeline - 1, rank if apart else None)
        held.setdefault(key, []).append(rank)
    return [
        Stage(ranks[0], len(ranks), numbers_of[ranks[0]], blocks, embedding, head, layout.virtual_pipeline)  # type: ignore[arg-type]
        for (blocks, embedding, head, _), ranks in held.items()
    ]


def in_flight(layout: Layout, rank: int, microbatches: int) -> float:
    """Microbatches, counted over all of a rank's layers, whose activations it holds at most.

    1F1B: as many as stages follow, itself included. Interleaved, the warm-up runs `2 (stages after) + (chunks - 1)
    pipeline` virtual stages ahead, each of them a part of the rank's layers.
    """
    after = layout.pipeline - rank - 1
    chunks = layout.virtual_pipeline
    if chunks == 1:
        return min(microbatches, after + 1)
    return min(microbatches, (2 * after + (chunks - 1) * layout.pipeline + 1) / chunks)


class MemoryModel:
    """Memory of layouts on one cluster, remembering parts that several of them share.

    Args:
        cluster: the ranks.
        workspace: bytes that libraries hold within the allocator.
    """

    def __init__(self, cluster: Cluster, workspace: float) -> None:
        self.cluster = cluster
        self.workspace = workspace
        self._held: dict[object, tuple[object, Held]] = {}
        self._counts: dict[object, tuple[object, Parameters]] = {}

    def worst(self, work: Workload, layout: Layout, stages: Sequence[Stage]) -> Memory:
        """Memory of the pipeline rank that needs most."""
        return max((self.rank(work, layout, stage) for stage in stages), key=lambda each: each.peak)

    def rank(self, work: Workload, layout: Layout, stage: Stage) -> Memory:
        """Memory of a rank that holds `stage`."""
        share = Share.of(work, layout)
        model, hidden = work.model, work.model.hidden_size
        weights, gradients, optimizer, gathered = self._state(work, layout, stage, share)
        microbatches = work.microbatches(layout.data_for(self.cluster.size)) or 1
        ahead = in_flight(layout, stage.first, microbatches)

        head = head_held(model, share, self.cluster.accelerator.memory) if stage.head else Held(0, 0)
        # What a stage sends stays until its gradient comes back.
        sent = block_input(hidden, share) * stage.chunks if layout.pipeline > 1 and not stage.head else 0
        kept, within, travelling = sent + head.saved, 0.0, 0.0
        for block, treatment, count in treated_blocks(work, stage.numbers):
            held = self._block(block, work, share)
            if treatment.offloaded:
                # While one block computes, what the one before or after keeps is on its way.
                travelling = max(travelling, 2 * treatment.kept(held))
            else:
                kept += treatment.kept(held) * count
            within = max(within, held.peak + treatment.repeated(held))
        within += travelling
        temporary = max(head.peak, within, 0.0)
        return Memory(weights, gradients, optimizer, kept * ahead, temporary + gathered + self.workspace)

    def _block(self, block: BlockConfig, work: Workload, share: Share) -> Held:
        key = (id(block), share)
        if key not in self._held:
            self._held[key] = (block, block_held(block, work.model.hidden_size, share, work.imbalance))
        return self._held[key][1]

    def _parameters(self, stage: Stage, work: Workload, share: Share) -> Parameters:
        key = (id(stage), share.tensor, share.expert, share.expert_tensor)
        if key not in self._counts:
            self._counts[key] = (stage, stage.parameters(work.model, share))
        return self._counts[key][1]

    def _state(self, work: Workload, layout: Layout, stage: Stage, share: Share) -> tuple[float, float, float, float]:
        """Bytes of weights, gradients and optimizer, and what is gathered or written out at once."""
        parameters, world = self._parameters(stage, work, share), self.cluster.size
        rounded = self._rounded(work, stage, share)
        if work.engine == "fsdp":
            sharers = layout.shard_for(world)
            trained = parameters.all / sharers * work.trained
            own = (parameters.all * (1 + work.added) - rounded) / sharers * FLOAT32 + rounded * FOUR_BIT
            return own, trained * FLOAT32, trained * 2 * work.moment, _gathered(work, stage, share)
        dense = parameters.dense / layout.shard_for(world)
        experts = parameters.experts * layout.replicate / layout.expert_data_for(world)
        main = FLOAT32 if work.precision == "bf16" else 0
        return (
            (parameters.all * (1 + work.added) - rounded) * work.element + rounded * FOUR_BIT,
            parameters.all * work.trained * FLOAT32,
            (dense + experts) * work.trained * (2 * work.moment + main),
            _written_out(work, stage, share),
        )

    def _rounded(self, work: Workload, stage: Stage, share: Share) -> float:
        """How many of a rank's parameters are in 4 bits: those of its blocks, nearly all of which are in matrices."""
        hidden = work.model.hidden_size
        return (
            sum(block_parameters(block, hidden, share).all * n for block, n in stage.blocks) if work.four_bit else 0.0
        )


def _gathered(work: Workload, stage: Stage, share: Share) -> float:
    """fsdp: what is gathered and on its way at once.

    Tables stay gathered, and the head's gradient stays until the last backward. Of the blocks this one and the next
    are, and the buffer from which the next comes; the gradient of the one before is widened to be reduced.
    """
    model, element = work.model, work.element
    table = table_parameters(model, share)
    tables = table * (1 if model.tie_embeddings else 2)
    if work.four_bit:
        return tables * element + _written_out(work, stage, share)
    largest = max(block_parameters(block, model.hidden_size, share).all for block, _ in stage.blocks)
    return (tables + table + 3 * largest) * element + largest * (element + FLOAT32)


def _written_out(work: Workload, stage: Stage, share: Share) -> float:
    """The largest matrix in 4 bits as it is written out for a product: gate and up together."""
    if not work.four_bit:
        return 0.0
    feed_forwards = [block.feed_forward for block, _ in stage.blocks]
    widths = [each.intermediate_size for each in feed_forwards if isinstance(each, FeedForwardConfig)]
    return 2 * work.model.hidden_size * max(widths, default=0) / share.tensor * work.element
