"""When nothing fits: what is impossible, and what is nearest to it that is possible."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from loong_core.nn.parts import ALL_BLOCKS
from loong_core.parallel.layout import Layout
from loong_core.plan.devices import GIB, Cluster
from loong_core.plan.rates import Rates
from loong_core.plan.report import describe_cluster, memory_words, overrides
from loong_core.plan.search import Candidate, Found, Freedom, Search, Serves
from loong_core.plan.workload import Workload

MOST_ACCELERATORS = 65_536
SHORTEST_SEQUENCE = 256


@dataclass(frozen=True)
class Request:
    """What was asked for.

    Attributes:
        work: the run.
        cluster: the accelerators.
        freedom: what a search may choose.
        serves: tells what keeps a layout from serving the model.
        rates: measured constants.
        layout: the run file's, to which what is found is told as changes.
    """

    work: Workload
    cluster: Cluster
    freedom: Freedom
    serves: Serves
    rates: Rates
    layout: Layout = field(default_factory=Layout)

    def changes(self, candidate: Candidate) -> str:
        """What to add to the command for the run to be as the candidate."""
        changed = overrides(candidate, self.layout, self.work.micro_batch_size, self.work.recompute)
        return changed or "the layout of the run file"

    def evaluate(self, layout: Layout, *, timed: bool = False) -> Candidate:
        """One layout that serves, with the run's own microbatch."""
        return Search(self.work, self.cluster, self.serves, self.rates).evaluate(layout, self.work, timed=timed)

    def search(self, *, timed: bool = True) -> Found:
        """Everything that is possible."""
        return Search(self.work, self.cluster, self.serves, self.rates).run(self.freedom, timed=timed)

    def first_fitting(self) -> Candidate | None:
        """Something that fits, the one that needs least memory."""
        fitting = self.search(timed=False).fitting
        return min(fitting, key=lambda each: each.needed) if fitting else None


def impossible(request: Request, found: Found) -> str:
    """Why a search found nothing, and what would be possible instead; several lines.

    Args:
        request: what was asked for.
        found: of its search; nothing fits.
    """
    where = describe_cluster(request.cluster)
    if found.closest is None and not found.indivisible:
        told = "\n".join(f"  - {fault}" for fault in found.faults.values())
        return f"no layout of {where} serves this model as it was asked for:\n{told}"
    if found.closest is None:
        return _batch(request, found)
    closest = found.closest
    what = (
        f"no layout of {where} holds this run: the least that a device must have is {closest.needed / GIB:.1f} GiB "
        f"({request.changes(closest)}), {request.cluster.accelerator.name} has "
        f"{request.cluster.accelerator.memory / GIB:.1f} GiB; of it {memory_words(closest.memory)}"
    )
    ways = [f"  - {way}" for way in nearest(request)]
    return "\n".join([what, "nearest:", *ways]) if ways else what


def nearest(request: Request) -> Iterator[str]:
    """Changes, one each, that make it fit."""
    freedom, work = request.freedom, request.work
    if freedom.micro_batches and max(freedom.micro_batches) > 1:
        smaller = range(min(freedom.micro_batches) - 1, 0, -1)
        for size in smaller:
            tried = replace(request, freedom=replace(freedom, micro_batches=(size,)))
            if candidate := tried.first_fitting():
                yield f"{request.changes(candidate)}: the largest microbatch that fits, in {_gib(candidate)}"
                break
    free = replace(request, freedom=replace(freedom, fixed={}))
    if freedom.fixed and (candidate := free.first_fitting()):
        yield f"{request.changes(candidate)}: another layout, in {_gib(candidate)}"
    if ALL_BLOCKS not in freedom.recompute:
        tried = replace(request, freedom=replace(freedom, recompute=(ALL_BLOCKS,)))
        if candidate := tried.first_fitting():
            yield f"{request.changes(candidate)}: recomputing each block in backward, in {_gib(candidate)}"
    if smallest := _smallest_cluster(request) or _smallest_cluster(free):
        cluster, candidate = smallest
        yield f"{describe_cluster(cluster)}: {request.changes(candidate)}, in {_gib(candidate)}"
    halved = work.sequence_length // 2
    while not smallest and halved >= SHORTEST_SEQUENCE:
        if candidate := replace(request, work=replace(work, sequence_length=halved)).first_fitting():
            yield f"data.sequence_length={halved} and {request.changes(candidate)}, in {_gib(candidate)}"
            break
        halved //= 2


def _gib(candidate: Candidate) -> str:
    return f"{candidate.needed / GIB:.1f} GiB"


def _batch(request: Request, found: Found) -> str:
    """The global batch does not divide."""
    size = request.work.global_batch_size
    micro = min(request.freedom.micro_batches or (1,))
    possible = {max(1, round(size / (data * micro))) * data * micro for data in found.indivisible}
    best = min(possible, key=lambda each: (abs(each - size), each))
    ranks = ", ".join(str(data) for data in sorted(found.indivisible)[:6])
    return (
        f"train.global_batch_size {size} does not divide into microbatches of {micro} on any layout of "
        f"{describe_cluster(request.cluster)}, which have {ranks}{', ...' if len(found.indivisible) > 6 else ''} data "
        f"ranks; the nearest that does is {best}"
    )


def _smallest_cluster(request: Request) -> tuple[Cluster, Candidate] | None:
    """The fewest accelerators of the kind that hold the run: doubled until it fits, then as few machines as do."""
    cluster = request.cluster
    usual = cluster.accelerator.per_node
    tried, size = cluster.size, cluster.size * 2
    while size <= MOST_ACCELERATORS:
        if fitting := _on(request, size, usual):
            step = max(usual, (size - tried) // 8 // usual * usual)
            for fewer in range(tried + step - tried % step, size, step) if size > usual else ():
                if found := _on(request, fewer, usual):
                    return found
            return fitting
        tried, size = size, size * 2
    return None


def _on(request: Request, size: int, usual: int) -> tuple[Cluster, Candidate] | None:
    cluster = Cluster(request.cluster.accelerator, size, min(size, usual))
    candidate = replace(request, cluster=cluster).first_fitting()
    return None if candidate is None else (cluster, candidate)
