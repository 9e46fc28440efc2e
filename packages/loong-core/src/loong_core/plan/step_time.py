"""Seconds of a step: microbatches through the pipeline, then gradients reduced, weights updated and gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from loong_core.nn.decoder_config import BlockConfig
from loong_core.parallel.layout import Layout
from loong_core.plan.block_time import FLOAT32, Passage, Seconds, Timer
from loong_core.plan.communication import Groups, Network
from loong_core.plan.devices import Cluster
from loong_core.plan.kept import PLAIN, Treatment, treated_blocks
from loong_core.plan.memory import Stage
from loong_core.plan.rates import Rates
from loong_core.plan.workload import Parameters, Share, Workload, block_parameters, table_parameters

EXPOSED_SENDS = 0.3
"""Part of the sends of the interleaved schedule, which overlaps them, that computation does not hide."""


@dataclass(frozen=True)
class StepTime:
    """A step of a run on a layout.

    Attributes:
        seconds: of the step.
        parts: the same by what takes them, on the pipeline rank that is busiest.
    """

    seconds: float
    parts: dict[str, float]

    def shares(self) -> list[tuple[str, float]]:
        """Parts as fractions of the step, the largest first."""
        ordered = sorted(self.parts.items(), key=lambda part: -part[1])
        return [(kind, seconds / self.seconds) for kind, seconds in ordered if seconds > 0]


class StepClock:
    """Times the steps of layouts, remembering blocks that several of them share.

    Args:
        cluster: the ranks.
        rates: measured constants.
    """

    def __init__(self, cluster: Cluster, rates: Rates) -> None:
        self.cluster = cluster
        self.rates = rates
        self.network = Network(cluster, rates)
        self._passages: dict[object, Passage] = {}

    def step(self, work: Workload, layout: Layout, stages: Sequence[Stage]) -> StepTime:
        """One step.

        Args:
            work: the run; its global batch divides into microbatches.
            layout: degrees that serve model and cluster.
            stages: what the pipeline ranks hold.
        """
        share = Share.of(work, layout)
        groups = Groups.of(layout, self.network)
        timer = Timer(work, share, self.network, groups, self.rates)
        microbatches = work.microbatches(layout.data_for(self.cluster.size))
        each = [self._microbatch(timer, layout, stage) for stage in stages]
        totals = [sum(parts.values()) for parts in each]
        busiest = max(range(len(each)), key=totals.__getitem__)
        filling = sum(total * stage.count for total, stage in zip(totals, stages, strict=True)) - totals[busiest]
        parts = Seconds()
        parts.add(each[busiest], microbatches)
        # While the pipeline fills and empties a rank waits for the others' one microbatch; virtual stages shorten it.
        parts["bubble"] += filling / layout.virtual_pipeline
        update = max(
            (self._update(work, layout, groups, stage, share) for stage in stages), key=lambda part: sum(part.values())
        )
        parts.add(update)
        parts["host"] += self.rates.host_step
        return StepTime(sum(parts.values()), dict(parts))

    def _microbatch(self, timer: Timer, layout: Layout, stage: Stage) -> Seconds:
        """Forward and backward of one microbatch on one pipeline rank."""
        parts, host = Seconds(), self.rates.host_microbatch
        passages = [
            (self._passage(timer, block, treatment), count)
            for block, treatment, count in treated_blocks(timer.work, stage.numbers)
        ]
        if stage.embedding:
            passages.append((self._passage(timer, "embedding"), 1))
        if stage.head:
            passages.append((self._passage(timer, "head"), 1))
        for passage, count in passages:
            host += passage.host * count
            parts.add(passage.forward, count)
            parts.add(passage.backward, count)
        work, share = timer.work, timer.share
        if work.engine == "fsdp":
            self._gather_blocks(timer, stage, parts)
        if layout.pipeline > 1:
            hidden = share.local_tokens * work.model.hidden_size * share.element
            sends = 2 * layout.virtual_pipeline * timer.network.send(hidden, timer.groups.pipeline_stride)
            parts["pipeline"] += sends if layout.virtual_pipeline == 1 else sends * EXPOSED_SENDS
        # The device waits for the host where its work is shorter than its launching.
        parts["host"] += max(0.0, host - sum(parts.values()))
        return parts

    def _passage(self, timer: Timer, part: BlockConfig | str, treatment: Treatment = PLAIN) -> Passage:
        """What a block, `embedding` or `head` takes; degrees that are not in the share do not matter to it."""
        key = (part if isinstance(part, str) else id(part), timer.share, treatment)
        if (known := self._passages.get(key)) is not None:
            return known
        made = timer.block(part, treatment) if isinstance(part, BlockConfig) else getattr(timer, part)()
        self._passages[key] = made
        return made

    def _gather_blocks(self, timer: Timer, stage: Stage, parts: Seconds) -> None:
        """fsdp: weights gathered for forward and backward and gradients scattered, under what is computed meanwhile."""
        group = timer.groups.data
        if group.size == 1:
            return
        work, model = timer.work, timer.work.model
        sizes = [block_parameters(block, model.hidden_size, timer.share).all * count for block, count in stage.blocks]
        tables = (1 if model.tie_embeddings else 2) * table_parameters(model, timer.share)
        weights = (sum(sizes) + tables) * work.element
        gradients = (sum(sizes) + tables) * FLOAT32 * work.trained
        moving = 2 * self.network.gather(weights, group) + self.network.gather(gradients, group)
        moving += self.network.reduce(gradients / group.size, timer.groups.copies)
        parts["sharding"] += max(0.0, moving - sum(parts.values()))

    def _update(self, work: Workload, layout: Layout, groups: Groups, stage: Stage, share: Share) -> Seconds:
        """What follows the last backward on one pipeline rank."""
        parts = Seconds()
        model, network = work.model, self.network
        parameters = stage.parameters(model, share)
        trained = Parameters(parameters.dense * work.trained, parameters.experts * work.trained)
        if work.engine == "fsdp":
            owned, buffered = trained.all / groups.data.size, 0.0
        else:
            for count, group in ((trained.dense, groups.data), (trained.experts, groups.expert_data)):
                parts["data"] += network.gather(count * FLOAT32, group)
                parts["data"] += network.reduce(count * FLOAT32 / group.size, groups.copies)
                parts["data"] += network.gather(count * work.element, group)
            owned = trained.dense / groups.data.size + trained.experts / groups.expert_data.size
            buffered = trained.all
            if model.tie_embeddings and layout.pipeline > 1 and (stage.embedding or stage.head):
                ends = network.group(2, groups.pipeline_stride * (layout.pipeline - 1))
                parts["data"] += network.reduce(table_parameters(model, share) * FLOAT32, ends)
        bandwidth = self.cluster.accelerator.memory_bandwidth
        # The sums are zeroed before a step, their norm is taken after; then AdamW, in one pass, the rounded weight too.
        parts["accumulate"] += (buffered + owned) * FLOAT32 / (bandwidth * self.rates.elementwise)
        rounded = work.element if work.precision == "bf16" and work.engine == "megatron" else 0
        parts["optimizer"] += owned * (7 * FLOAT32 + rounded) / (bandwidth * self.rates.optimizer)
        return parts
