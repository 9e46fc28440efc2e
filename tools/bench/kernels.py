"""Speed and memory of ops on a GPU, implementation by implementation, at the shapes of Qwen3-8B and Qwen3-30B-A3B.

    python -m tools.bench.kernels [--tokens 8192] [--op rms_norm] [--plot kernels.png]

Each row is one implementation: milliseconds of forward and of backward (medians), the bytes or operations that the op
cannot do without over that time, and the peak memory above the inputs. Records go to docs/benchmarks/kernels.jsonl; the
plot shows time and memory of each implementation relative to the first choice.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

import loong_kernels as ops
from loong_kernels import registry
from loong_kernels.fp8.weights import weight_in_bits
from loong_kernels.ops.quantise import quantise
from loong_kernels.ops.quantise_swiglu import quantise_swiglu, quantise_swiglu_gradient
from loong_kernels.ops.scaled_product import scaled_product
from tools.bench import record

HIDDEN, WIDE, HEADS, KV_HEADS, HEAD = 4096, 12288, 32, 8, 128
EXPERTS, TOP_K, EXPERT_HIDDEN, EXPERT_WIDE = 128, 8, 2048, 768
SEQUENCE = 8192


@dataclass(frozen=True)
class Case:
    """One op at one shape.

    Attributes:
        op: whose implementations are timed.
        shape: for people.
        call: the forward; what requires a gradient gets one.
        work: floating-point operations of forward (backward has twice as many), or None where memory is the limit.
        moved: bytes that forward reads and writes at the least; 0 where operations are the limit.
    """

    op: str
    shape: str
    call: Callable[[], object]
    work: float | None = None
    moved: float = 0.0


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    """A tensor that wants a gradient."""
    return (torch.randn(*shape, device="cuda", dtype=dtype) * scale).requires_grad_()


def cases(tokens: int) -> Iterator[Case]:
    """Every op that has a forward on a GPU."""
    x, weight = random(tokens, HIDDEN), random(HIDDEN)
    yield Case("rms_norm", f"{tokens} x {HIDDEN}", lambda: ops.rms_norm(x, weight, 1e-6), moved=4.0 * x.numel())
    added = random(tokens, HIDDEN)
    yield Case(
        "add_rms_norm",
        f"{tokens} x {HIDDEN}",
        lambda: ops.add_rms_norm(added, x, weight, 1e-6)[0],
        moved=8.0 * x.numel(),
    )
    gate_up = random(tokens, 2 * WIDE)
    yield Case("swiglu", f"{tokens} x {WIDE}", lambda: ops.swiglu(gate_up), moved=3.0 * gate_up.numel())
    qkv = random(tokens, (HEADS + 2 * KV_HEADS) * HEAD)
    angles = [torch.randn(tokens, HEAD // 2, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    norms = [random(HEAD) for _ in range(2)]
    yield Case(
        "qk_norm_rotary",
        f"{tokens} x {HEADS} and {KV_HEADS} heads of {HEAD}",
        lambda: torch.cat(
            [
                each.flatten()
                for each in ops.qk_norm_rotary(
                    qkv, *angles, heads=HEADS, kv_heads=KV_HEADS, q_weight=norms[0], k_weight=norms[1], eps=1e-6
                )
            ]
        ),
        moved=8.0 * qkv.numel(),
    )
    q, k, v = (random(1, SEQUENCE, heads, HEAD) for heads in (HEADS, KV_HEADS, KV_HEADS))
    yield Case(
        "attention",
        f"1 x {SEQUENCE}, {HEADS} and {KV_HEADS} heads of {HEAD}",
        lambda: ops.attention(q, k, v, scale=HEAD**-0.5),
        work=2.0 * HEADS * HEAD * SEQUENCE**2,
    )
    matrix, sums = random(2 * WIDE, HIDDEN, scale=0.02), torch.zeros(2 * WIDE, HIDDEN, device="cuda")
    yield Case(
        "linear",
        f"{tokens} x {HIDDEN} to {2 * WIDE}, into a sum",
        lambda: ops.linear(x, matrix, weight_grad_into=sums),
        work=2.0 * tokens * matrix.numel(),
    )
    rows = random(tokens * TOP_K, EXPERT_HIDDEN)
    experts = random(EXPERTS, 2 * EXPERT_WIDE, EXPERT_HIDDEN, scale=0.02)
    expert_sums = torch.zeros(experts.shape, device="cuda")
    chosen = torch.randint(EXPERTS, (tokens * TOP_K,), device="cuda")
    offsets = torch.bincount(chosen, minlength=EXPERTS).cumsum(0).to(torch.int32)
    yield Case(
        "grouped_linear",
        f"{tokens * TOP_K} rows, {EXPERTS} experts {EXPERT_HIDDEN} to {2 * EXPERT_WIDE}, into a sum",
        lambda: ops.grouped_linear(rows, experts, offsets, weight_grad_into=expert_sums),
        work=2.0 * tokens * TOP_K * 2 * EXPERT_WIDE * EXPERT_HIDDEN,
    )
    with torch.no_grad():
        plain, wide, upstream = x.detach(), gate_up.detach(), random(tokens, WIDE).detach()
        yield Case("quantise", f"{tokens} x {HIDDEN}", lambda: quantise(plain, "tiles"), moved=4.0 * plain.numel())
        yield Case(
            "quantise_swiglu", f"{tokens} x {WIDE}", lambda: quantise_swiglu(wide, "tiles"), moved=3.0 * wide.numel()
        )
        yield Case(
            "quantise_swiglu_gradient",
            f"{tokens} x {WIDE}",
            lambda: quantise_swiglu_gradient(upstream, wide, "tiles"),
            moved=5.0 * wide.numel(),
        )
        rounded, bits = quantise(plain, "tiles").by_row, weight_in_bits(matrix, "blockwise")
        assert rounded is not None
        yield Case(
            "scaled_product",
            f"{tokens} x {HIDDEN} to {2 * WIDE}",
            lambda: scaled_product(rounded, bits.forward, torch.bfloat16),
            work=2.0 * tokens * matrix.numel(),
        )


def milliseconds(run: Callable[[], object], repeats: int = 10) -> float:
    """Median time of a call on the device, after three to warm up."""
    times = []
    for _ in range(repeats + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


def measured(case: Case, implementation: str) -> dict[str, object]:
    """Times, rates and memory of one implementation."""
    with registry.using({case.op: implementation}):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = case.call()
        backward = None
        if isinstance(out, Tensor) and out.requires_grad:
            upstream = torch.randn_like(out)
            out.backward(upstream, retain_graph=True)
            backward = milliseconds(lambda: out.backward(upstream, retain_graph=True))
        peak = torch.cuda.max_memory_allocated() - before
        forward = milliseconds(case.call)
    return {
        "op": case.op,
        "implementation": implementation,
        "shape": case.shape,
        "forward_ms": round(forward, 3),
        "backward_ms": None if backward is None else round(backward, 3),
        "forward_tflops": None if case.work is None else round(case.work / forward / 1e9),
        "backward_tflops": None if case.work is None or backward is None else round(2 * case.work / backward / 1e9),
        "forward_tb_per_second": round(case.moved / forward / 1e9, 2) if case.moved else None,
        "peak_mib": round(peak / 2**20),
    }


def plot(rows: list[dict[str, object]], file: pathlib.Path) -> None:
    """Forward time and peak memory of each implementation, as a bar each."""
    from matplotlib import pyplot

    names = [f"{row['op']} / {row['implementation']}" for row in rows]
    figure, axes = pyplot.subplots(1, 2, figsize=(14, 0.3 * len(rows) + 1.5), sharey=True)
    for axis, key, label in zip(axes, ("forward_ms", "peak_mib"), ("forward, ms", "peak memory above inputs, MiB")):
        axis.barh(names, [float(str(row[key])) for row in rows])
        axis.set_xscale("log")
        axis.set_xlabel(label)
    axes[0].invert_yaxis()
    figure.tight_layout()
    figure.savefig(file, dpi=110)


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--op", help="only this op")
    parser.add_argument("--plot", type=pathlib.Path, help="PNG to write")
    parser.add_argument("--record", type=pathlib.Path, default=record.FOLDER / "kernels.jsonl")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    for case in cases(arguments.tokens):
        if arguments.op not in (None, case.op):
            continue
        for standing in registry.standing(case.op, "cuda"):
            name = standing.implementation.name
            if standing.reason is not None or name == "reference":
                continue
            try:
                row = measured(case, name)
            except (registry.KernelChoiceError, torch.OutOfMemoryError) as error:
                print(f"{case.op:26} {name:20} {str(error).splitlines()[0][:110]}")
                continue
            rows.append(row)
            record.append(arguments.record, row)
            figures = " ".join(f"{key} {value}" for key, value in list(row.items())[3:] if value is not None)
            print(f"{case.op:26} {name:20} {case.shape:44} {figures}", flush=True)
    if arguments.plot is not None:
        plot(rows, arguments.plot)


if __name__ == "__main__":
    main()
