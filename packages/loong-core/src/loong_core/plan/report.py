"""What a plan says: a table for people, an object for programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

from loong_core.nn.parts import Parts
from loong_core.parallel.layout import Layout
from loong_core.plan.block_time import KINDS
from loong_core.plan.devices import GIB, Cluster
from loong_core.plan.memory import Memory
from loong_core.plan.search import Candidate, Found
from loong_core.plan.workload import Workload

_NAMED_LIMITS = 2
_DEGREES = tuple(field.name for field in fields(Layout))


def describe_cluster(cluster: Cluster) -> str:
    """`64 h200 (8 machines of 8)`."""
    machines = f" ({cluster.nodes} machines of {cluster.per_node})" if cluster.nodes > 1 else ""
    return f"{cluster.size} {cluster.accelerator.name}{machines}"


def describe_workload(work: Workload) -> str:
    """Batch, sequences, precision."""
    documents = ", attention within documents" if work.packed else ""
    trained = "" if work.trained == 1 else f", {100 * work.trained:.2g} % of its parameters trained"
    rounded = ", frozen matrices in 4 bits" if work.four_bit else ""
    return (
        f"{work.global_batch_size} sequences of {work.sequence_length} tokens a step, {work.precision}, "
        f"{work.engine} engine{documents}{trained}{rounded}"
    )


def overrides(candidate: Candidate, layout: Layout, micro_batch_size: int, recompute: Parts) -> str:
    """What to write on a command line, after a run file that says this, to run as the candidate does.

    Every key that must differ is there, also where the candidate has the default; empty if none must.
    """
    degrees = {name: (getattr(candidate.layout, name), getattr(layout, name)) for name in _DEGREES}
    changed = [f"layout.{name}={_as_value(new)}" for name, (new, old) in degrees.items() if new != old]
    if candidate.work.micro_batch_size != micro_batch_size:
        changed.append(f"train.micro_batch_size={candidate.work.micro_batch_size}")
    if candidate.work.recompute != recompute:
        changed.append(f"recompute={'full' if candidate.work.recompute.everything else 'none'}")
    return " ".join(changed)


def _as_value(degree: int | Sequence[int] | None) -> str:
    """As an override has it: without blanks, which would end it."""
    if isinstance(degree, Sequence):
        return f"[{','.join(map(str, degree))}]"
    return "null" if degree is None else str(degree)


def limits(candidate: Candidate) -> str:
    """What takes most of a step, in words."""
    if candidate.time is None:
        return "memory"
    shares = candidate.time.shares()[:_NAMED_LIMITS]
    return ", ".join(f"{KINDS[kind]} {share:.0%}" for kind, share in shares)


def memory_words(memory: Memory) -> str:
    """The parts of a rank's memory, in GiB."""
    return ", ".join(f"{field.name} {getattr(memory, field.name) / GIB:.1f}" for field in fields(Memory))


def table(found: Found, cluster: Cluster, top: int, own: Candidate | None = None) -> str:
    """The fastest layouts that fit, one a line; the run's own is marked, and added where it is not among them.

    Args:
        found: of the search.
        cluster: the accelerators.
        top: how many lines.
        own: the layout of the run file, if it serves.
    """
    rows: list[tuple[str, ...]] = [_COLUMNS]
    shown = list(enumerate(found.fitting[:top], start=1))
    marked = None
    for number, candidate in shown:
        mark = ""
        if own is not None and marked is None and candidate.layout == own.layout and candidate.work == own.work:
            mark, marked = "*", number
        rows.append(_row(f"{number}{mark}", candidate, cluster))
    if own is not None and marked is None:
        rows.append(_row("*", own, cluster))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row[:-1], widths)) + "  " + row[-1] for row in rows]
    if own is not None:
        lines.append("* the layout of the run file" + ("" if own.time is not None else ", which does not fit"))
    return "\n".join(lines)


def as_object(
    work: Workload,
    cluster: Cluster,
    found: Found,
    top: int,
    own: Candidate | None = None,
    *,
    overrides_of: Callable[[Candidate], str],
) -> dict[str, Any]:
    """The same for programs: bytes, seconds, tokens a second of one accelerator; `overrides_of`: how to run one."""

    def described(candidate: Candidate) -> dict[str, Any]:
        return {"overrides": overrides_of(candidate)} | _object(candidate, cluster)

    return {
        "device": cluster.accelerator.name,
        "gpus": cluster.size,
        "nodes": cluster.nodes,
        "device_memory": cluster.accelerator.memory,
        "parameters": work.model.parameter_count(),
        "flops_per_token": work.flops_per_token,
        "sequence_length": work.sequence_length,
        "global_batch_size": work.global_batch_size,
        "precision": work.precision,
        "engine": work.engine,
        "layouts_that_serve": found.layouts,
        "layouts_that_fit": len(found.fitting),
        "layouts": [described(candidate) for candidate in found.fitting[:top]],
        "run_file": None if own is None else described(own),
    }


_COLUMNS = (
    *("", "tensor", "pipeline", "context", "expert", "data", "micro", "step s", "tok/s/GPU", "MFU"),
    *("weights", "grads", "optim", "activ", "temp", "needs GiB", "limited by"),
)


def _row(number: str, candidate: Candidate, cluster: Cluster) -> tuple[str, ...]:
    layout, work, memory = candidate.layout, candidate.work, candidate.memory
    data = layout.data_for(cluster.size)
    parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations, memory.temporary)
    speed = ("-", "-", "-")
    if candidate.time is not None:
        speed = (f"{candidate.seconds:.3g}", f"{_tokens(candidate, cluster):,.0f}", f"{_mfu(candidate, cluster):.0%}")
    return (
        number,
        f"{layout.tensor}",
        f"{layout.pipeline}" + (f"x{layout.virtual_pipeline}" if layout.virtual_pipeline > 1 else ""),
        f"{layout.context}" + (f"u{layout.ulysses}" if layout.ulysses > 1 else ""),
        f"{layout.expert}" + (f"t{layout.expert_tensor}" if layout.expert_tensor > 1 else ""),
        f"{data}",
        f"{work.micro_batch_size}x{work.microbatches(data)}"
        + ("" if work.recompute.nothing else "r")
        + ("" if work.offload.nothing else "o"),
        *speed,
        *(f"{part / GIB:.1f}" for part in parts),
        f"{candidate.needed / GIB:.1f}",
        limits(candidate),
    )


def _object(candidate: Candidate, cluster: Cluster) -> dict[str, Any]:
    layout, work = candidate.layout, candidate.work
    made: dict[str, Any] = {
        "layout": {"data": layout.data_for(cluster.size), **asdict(layout)},
        "micro_batch_size": work.micro_batch_size,
        "microbatches": work.microbatches(layout.data_for(cluster.size)),
        "recompute": str(work.recompute),
        "offload": str(work.offload),
        "memory": {**asdict(candidate.memory), "peak": candidate.memory.peak, "needed": candidate.needed},
        "fits": candidate.needed <= cluster.accelerator.memory,
        "limited_by": limits(candidate),
    }
    if candidate.time is not None:
        made |= {
            "step_seconds": candidate.seconds,
            "tokens_per_second_per_gpu": _tokens(candidate, cluster),
            "mfu": _mfu(candidate, cluster),
            "seconds": candidate.time.parts,
        }
    return made


def _tokens(candidate: Candidate, cluster: Cluster) -> float:
    return candidate.work.step_tokens / candidate.seconds / cluster.size


def _mfu(candidate: Candidate, cluster: Cluster) -> float:
    accelerator = cluster.accelerator
    peak = accelerator.bf16 if candidate.work.precision == "bf16" else accelerator.fp32
    return _tokens(candidate, cluster) * candidate.work.flops_per_token / peak
