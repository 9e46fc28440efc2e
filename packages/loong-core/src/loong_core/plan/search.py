"""Which layouts of a number of accelerators hold a run, and how fast each is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loong_core.errors import Fault
from loong_core.nn.parts import NOTHING, Parts
from loong_core.parallel.layout import Layout
from loong_core.plan.devices import Cluster
from loong_core.plan.kept import names_layers
from loong_core.plan.memory import Memory, MemoryModel, Stage, pipeline_stages
from loong_core.plan.rates import Rates
from loong_core.plan.step_time import StepClock, StepTime
from loong_core.plan.workload import Workload

Serves = Callable[[Layout, int], list[Fault]]
"""What keeps a layout from serving the model on so many ranks."""

SHORTEST_PART = 4096
"""Tokens of a sequence that a context rank has at least: with fewer, sharing a sequence does not pay."""
MOST_CONTEXT_RANKS = 1024
LONGEST_MICROBATCH = 65_536
"""Tokens of a microbatch beyond which nothing gets faster."""
LONGEST_BUBBLE = 0.02
"""Part of a step that pipeline ranks may wait before virtual stages are tried."""
DIVIDED = 60
"""How many of the fastest layouts they are tried for."""
MOST_CHUNKS = 12


@dataclass(frozen=True)
class Candidate:
    """A layout with its microbatch, and what they cost.

    Attributes:
        layout: degrees.
        work: the run with this microbatch and recomputation.
        memory: of the rank that needs most.
        needed: bytes that the device must have for it.
        time: of a step; None where memory does not fit, or time was not asked for.
    """

    layout: Layout
    work: Workload
    memory: Memory
    needed: float
    time: StepTime | None = None

    @property
    def degrees(self) -> tuple[int, ...]:
        """What tells its layout from others, virtual stages apart."""
        layout = self.layout
        return (layout.tensor, layout.pipeline, layout.context, layout.ulysses, layout.expert, layout.expert_tensor)

    @property
    def seconds(self) -> float:
        """Of a step; endless where it is not known."""
        return self.time.seconds if self.time else float("inf")


@dataclass(frozen=True)
class Freedom:
    """What a search may choose.

    Attributes:
        fixed: fields of the layout that are given.
        micro_batches: sizes to try; None: powers of two, and the run's own.
        recompute: what to try, in order; the next only where the one before does not fit.
    """

    fixed: Mapping[str, Any] = field(default_factory=dict)
    micro_batches: tuple[int, ...] | None = None
    recompute: tuple[Parts, ...] = (NOTHING,)


@dataclass
class Found:
    """What a search found.

    Attributes:
        fitting: of each layout that fits the best microbatch, recomputation and virtual stages; the fastest first.
        closest: what needs least memory; None where nothing serves.
        layouts: how many serve model and cluster.
        indivisible: data ranks of layouts that serve, among which the global batch does not divide.
        faults: what kept layouts from serving, by where it is.
    """

    fitting: list[Candidate] = field(default_factory=list)
    closest: Candidate | None = None
    layouts: int = 0
    indivisible: set[int] = field(default_factory=set)
    faults: dict[str, Fault] = field(default_factory=dict)


class Search:
    """Tries layouts of one run on one cluster.

    Args:
        work: the run; its microbatch and recomputation are replaced by those tried.
        cluster: the accelerators.
        serves: tells what keeps a layout from serving the model.
        rates: measured constants.
    """

    def __init__(self, work: Workload, cluster: Cluster, serves: Serves, rates: Rates) -> None:
        self.work = work
        self.cluster = cluster
        self.serves = serves
        self._clock = StepClock(cluster, rates)
        self._memory = MemoryModel(cluster, rates.workspace)
        self._stages: dict[object, list[Stage]] = {}

    def run(self, freedom: Freedom, *, timed: bool = True) -> Found:
        """Try everything that `freedom` allows; without `timed` memory alone is looked at."""
        found = Found()
        fitting: list[Candidate] = []
        for layout in self._layouts(freedom.fixed):
            if faults := self.serves(layout, self.cluster.size):
                found.faults |= {fault.where: fault for fault in faults}
                continue
            found.layouts += 1
            sizes = self._micro_batches(layout, freedom)
            if not sizes:
                found.indivisible.add(layout.data_for(self.cluster.size))
            for size in sizes:
                for candidate in self._with_recompute(layout, size, freedom, timed):
                    if self.fits(candidate):
                        fitting.append(candidate)
                    if found.closest is None or candidate.needed < found.closest.needed:
                        found.closest = candidate
        if timed:
            fitting.sort(key=lambda each: each.seconds)
            fitting += [each for each in self._divided(fitting, freedom) if self.fits(each)]
            fitting.sort(key=lambda each: each.seconds)
        best: dict[tuple[int, ...], Candidate] = {}
        for candidate in fitting:
            best.setdefault(candidate.degrees, candidate)
        found.fitting = list(best.values())
        return found

    def fits(self, candidate: Candidate) -> bool:
        """Whether the device has what it needs."""
        return candidate.needed <= self.cluster.accelerator.memory

    def evaluate(self, layout: Layout, work: Workload, *, timed: bool = True) -> Candidate:
        """One layout that serves, with the microbatch and recomputation of `work`; timed only if it fits."""
        stages = self._stages_of(layout)
        memory = self._memory.worst(work, layout, stages)
        candidate = Candidate(layout, work, memory, memory.needed(self.cluster.size))
        if not timed or not self.fits(candidate):
            return candidate
        return replace(candidate, time=self._clock.step(work, layout, stages))

    def _stages_of(self, layout: Layout) -> list[Stage]:
        key = (layout.pipeline, layout.virtual_pipeline, layout.pipeline_layers)
        if key not in self._stages:
            self._stages[key] = pipeline_stages(self.work.model, layout, apart=names_layers(self.work))
        return self._stages[key]

    def _with_recompute(self, layout: Layout, size: int, freedom: Freedom, timed: bool) -> Iterator[Candidate]:
        for recompute in freedom.recompute:
            work = replace(self.work, micro_batch_size=size, recompute=recompute)
            candidate = self.evaluate(layout, work, timed=timed)
            yield candidate
            if self.fits(candidate):
                return

    def _divided(self, fastest: Sequence[Candidate], freedom: Freedom) -> Iterator[Candidate]:
        """The fastest layouts whose pipeline ranks wait long, with virtual stages."""
        if "virtual_pipeline" in freedom.fixed or "pipeline_layers" in freedom.fixed:
            return
        for candidate in fastest[:DIVIDED]:
            layout, time = candidate.layout, candidate.time
            if time is None or time.parts.get("bubble", 0.0) < LONGEST_BUBBLE * time.seconds:
                continue
            microbatches = candidate.work.microbatches(layout.data_for(self.cluster.size))
            layers = self.work.model.num_layers
            if layers % layout.pipeline == 0 and microbatches % layout.pipeline == 0:
                for chunks in _divisors(layers // layout.pipeline):
                    if 1 < chunks <= MOST_CHUNKS:
                        yield self.evaluate(replace(layout, virtual_pipeline=chunks), candidate.work)

    def _layouts(self, fixed: Mapping[str, Any]) -> Iterator[Layout]:
        """Layouts that might serve, without virtual stages unless they are given."""
        world, model, work = self.cluster.size, self.work.model, self.work
        heads = model.attention.num_heads
        experts = model.mixtures[0].router.num_experts if model.mixtures else 1
        options: dict[str, list[int]] = {
            "tensor": [n for n in _divisors(heads) if n <= self.cluster.per_node],
            "pipeline": [n for n in _divisors(world) if n <= model.num_layers],
            "context": _powers_of_two(max(1, min(work.sequence_length // SHORTEST_PART, MOST_CONTEXT_RANKS))),
            "expert": _divisors(experts),
        }
        if work.engine == "fsdp":  # it shares among data and context ranks only
            options |= {name: [1] for name in options if name != "context"}
        options |= {name: [fixed[name]] for name in options if name in fixed}
        chosen = (*options, "expert_tensor", "ulysses")
        rest = {name: value for name, value in fixed.items() if name not in chosen}
        for tensor in options["tensor"]:
            for pipeline in options["pipeline"]:
                for context in options["context"]:
                    # A fixed degree that does not divide is told; others are passed over.
                    if world % (tensor * pipeline * context) and not fixed:
                        continue
                    for choice in self._expert_choices(options["expert"], tensor, pipeline, fixed):
                        for ulysses in _ulysses(heads // tensor, context, fixed):
                            yield Layout(
                                tensor=tensor, pipeline=pipeline, context=context, ulysses=ulysses, **choice, **rest
                            )

    def _expert_choices(
        self, experts: Sequence[int], tensor: int, pipeline: int, fixed: Mapping[str, Any]
    ) -> Iterator[dict[str, int]]:
        """Degrees of expert and expert-tensor parallelism; experts whole, or cut as the other matrices are."""
        widths = {1, tensor} if self.work.model.mixtures and self.work.engine == "megatron" else {1}
        for expert_tensor in [fixed["expert_tensor"]] if "expert_tensor" in fixed else sorted(widths):
            for expert in experts:
                if fixed or self.cluster.size // pipeline % (expert * expert_tensor) == 0:
                    yield {"expert": expert, "expert_tensor": expert_tensor}

    def _micro_batches(self, layout: Layout, freedom: Freedom) -> list[int]:
        """Sizes that divide the global batch among the data ranks, and that the schedule takes."""
        data = layout.data_for(self.cluster.size)
        sizes = freedom.micro_batches
        if sizes is None:
            most = max(1, LONGEST_MICROBATCH * layout.context // self.work.sequence_length)
            sizes = tuple(sorted({*_powers_of_two(most), self.work.micro_batch_size}))
        counts = {size: self.work.with_micro_batch(size).microbatches(data) for size in sizes}
        whole = layout.pipeline if layout.virtual_pipeline > 1 else 1
        return [size for size, count in counts.items() if count and count % whole == 0]


def _ulysses(heads: int, context: int, fixed: Mapping[str, Any]) -> list[int]:
    """A ring of all context ranks, or exchanges among as many as the heads allow."""
    if "ulysses" in fixed:
        return [fixed["ulysses"]]
    most = max(n for n in _divisors(context) if heads % n == 0)
    return sorted({1, most})


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def _powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]
