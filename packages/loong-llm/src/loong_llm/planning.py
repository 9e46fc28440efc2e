"""A run file as `loong_core.plan` takes it, and whether it fits on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from loong_core.errors import Fault
from loong_core.nn.decoder_config import DecoderConfig
from loong_core.nn.parts import Parts
from loong_core.parallel.layout import Layout
from loong_core.plan.devices import ACCELERATORS, GIB, Cluster
from loong_core.plan.nearest import Request, nearest
from loong_core.plan.rates import measured_rates
from loong_core.plan.report import memory_words, overrides
from loong_core.plan.search import Candidate, Freedom
from loong_core.plan.workload import Workload
from loong_llm.model_config import layout_faults
from loong_llm.recipes.training_config import TrainingConfig

if TYPE_CHECKING:
    from loong_llm.families.family import Family


def workload_of(config: TrainingConfig, model: DecoderConfig, family: Family | None = None) -> Workload:
    """What memory and time of a run depend on.

    Args:
        config: the run file.
        model: its model.
        family: whose names the patterns of what is trained are for; None: everything counts as trained.

    Raises:
        UserError: one of these patterns matches nothing.
    """
    share = {}
    if family is not None and (config.lora is not None or config.train.freeze or config.train.train_only):
        from loong_llm.trained_share import trained_share  # brings torch, which plans of whole models do not need

        share = trained_share(config, family.weight_map(model), model.num_layers)
    return Workload(
        model=model,
        sequence_length=config.data.sequence_length,
        global_batch_size=config.train.global_batch_size,
        micro_batch_size=config.train.micro_batch_size,
        precision=config.precision,
        packed=not getattr(config.data, "attend_across_documents", False),  # conversations are always apart
        engine=config.engine,
        recompute=config.recompute.parts,
        offload=config.offload.parts,
        moments=config.train.moments,
        **share,
    )


def layout_of(config: TrainingConfig) -> Layout:
    """The run file's layout."""
    return Layout(**config.layout.model_dump())


def request_of(
    config: TrainingConfig,
    model: DecoderConfig,
    cluster: Cluster,
    *,
    fixed: Sequence[str] = (),
    recompute: tuple[Parts, ...] | None = None,
    family: Family | None = None,
) -> Request:
    """What to search for.

    Args:
        config: the run file, overrides applied.
        model: its model.
        cluster: the accelerators.
        fixed: keys that the search leaves as they are, of `layout.*` and `train.micro_batch_size`.
        recompute: what to try, in order; what the run file says by default.
        family: as of `workload_of`.
    """
    layout = layout_of(config)
    degrees = {key: getattr(layout, key) for name in fixed if (key := name.removeprefix("layout.")) != name}
    sizes = (config.train.micro_batch_size,) if "train.micro_batch_size" in fixed else None
    return Request(
        workload_of(config, model, family),
        cluster,
        Freedom(degrees, sizes, recompute or (config.recompute.parts,)),
        lambda layout, world_size: layout_faults(model, layout, world_size),
        measured_rates(),
        layout,
    )


def own_candidate(request: Request, layout: Layout) -> Candidate | None:
    """The run file's own layout on the cluster, None where it does not serve."""
    work, size = request.work, request.cluster.size
    if work.engine == "fsdp" and layout.tensor * layout.pipeline * layout.expert * layout.expert_tensor > 1:
        return None
    if request.serves(layout, size) or not work.microbatches(layout.data_for(size)):
        return None
    return request.evaluate(layout, timed=True)


def cluster_of(name: str, memory: int, ranks: int) -> Cluster:
    """Accelerators of which name and bytes are known, with the rates of the kind whose name that holds, else h200's."""
    words = name.lower().replace("-", " ").split()
    kind = next((each for each in ACCELERATORS.values() if each.name in words), ACCELERATORS["h200"])
    return Cluster(replace(kind, name=name, memory=memory), ranks, min(ranks, kind.per_node))


def planned_peak(config: TrainingConfig, model: DecoderConfig, ranks: int) -> float:
    """Bytes that a rank's accelerator has allocated at most; the layout serves and the batch divides."""
    cluster = cluster_of("h200", round(ACCELERATORS["h200"].memory), ranks)
    request = request_of(config, model, cluster)
    return request.evaluate(layout_of(config)).memory.peak


def memory_faults(config: TrainingConfig, model: DecoderConfig, cluster: Cluster) -> list[Fault]:
    """A fault if the run cannot fit on these accelerators as its file says, with what would.

    The layout serves and the batch divides; what is planned is the pipeline rank that needs most.
    """
    request = request_of(config, model, cluster)
    work, own = request.work, request.evaluate(layout_of(config))
    if own.memory.least <= cluster.accelerator.memory:
        return []
    what = (
        f"needs {own.needed / GIB:.1f} GiB a rank, {cluster.accelerator.name} has "
        f"{cluster.accelerator.memory / GIB:.1f} GiB (GiB: {memory_words(own.memory)})"
    )
    sizes = tuple(size for size in range(1, work.micro_batch_size + 1) if work.micro_batch_size % size == 0)
    free = Freedom(micro_batches=sizes, recompute=(work.recompute,))
    found = replace(request, freedom=free).search()
    if found.fitting:
        best = min(found.fitting, key=lambda each: (_changes(each, own), each.seconds))
        fix = f"{_difference(best, own)} fits in {best.needed / GIB:.1f} GiB"
    else:
        fix = "nearest: " + "; or ".join(nearest(replace(request, freedom=replace(free, micro_batches=(1,)))))
    return [Fault("memory", what, fix)]


def _difference(candidate: Candidate, own: Candidate) -> str:
    """The keys in which a candidate differs, as overrides."""
    return overrides(candidate, own.layout, own.work.micro_batch_size, own.work.recompute)


def _changes(candidate: Candidate, own: Candidate) -> int:
    """How many keys differ."""
    return len(_difference(candidate, own).split())
