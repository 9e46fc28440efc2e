"""Training steps of language models, stack against stack, on the same work.

    python -m tools.bench.lm --stack loong,transformers,megatron-te --model qwen3-8b-l8 --precision bf16

Each stack runs in a process of its own, one after the other, on one device: random token ids, AdamW and clipping
included, no recompute. A row gives the median step of `--steps`, tokens/s, model TFLOP/s (see `Shape.flops_per_token`),
MFU against the data sheet's dense bf16 peak, and peak memory. A record is appended to docs/benchmarks/lm.jsonl.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import time

from tools.bench import record
from tools.bench.lm_stacks.work import SHAPES, Work

STACKS = {"loong": "loong", "transformers": "transformers", "megatron-te": "megatron_te"}


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Run one stack in this process."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    stack = importlib.import_module(f"tools.bench.lm_stacks.{STACKS[arguments.stack]}")
    work = Work(
        SHAPES[arguments.model],
        arguments.precision,
        arguments.sequence,
        arguments.batch,
        arguments.microbatches,
        device,
    ).shrunk(arguments.layers)
    step = stack.build(work)
    synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    seconds, losses = [], []
    for number in range(arguments.warmup + arguments.steps):
        ids = work.token_ids(number)
        synchronize()
        start = time.perf_counter()
        losses.append(step(ids))
        synchronize()
        seconds.append(time.perf_counter() - start)
    if arguments.profile:
        _profile(step, work, f"{arguments.profile}.{arguments.stack}.{arguments.precision}")
    median = statistics.median(seconds[arguments.warmup :])
    flops = work.tokens / median * work.shape.flops_per_token(work.sequence)
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return {
        "stack": arguments.stack,
        "model": arguments.model,
        "layers": work.shape.layers,
        "precision": arguments.precision,
        "sequence": work.sequence,
        "batch": work.batch,
        "microbatches": work.microbatches,
        "step_ms": round(median * 1e3, 1),
        "tokens_per_second": round(work.tokens / median),
        "model_tflops": round(flops / 1e12, 1),
        "mfu_of_989": round(flops / 989e12, 4),
        "peak_memory_gib": round(peak, 1),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "optimizer": stack.memory_note(),
    }


def _profile(step, work: Work, file: str) -> None:  # noqa: ANN001
    """Write where one step's device time goes, by kernel."""
    import torch

    ids = work.token_ids(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(ids)
        torch.cuda.synchronize()
    table = profile.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=90)
    pathlib.Path(file).write_text(table)


def main() -> int:
    """Run the stacks asked for and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stack", default="loong,transformers", help="of " + ", ".join(STACKS))
    parser.add_argument("--model", default="qwen3-8b-l8", choices=list(SHAPES))
    parser.add_argument(
        "--precision",
        default="bf16",
        help="bf16, fp8 (blockwise), fp8-rowwise, fp8-tensorwise, adaptive; several with commas",
    )
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1, help="sequences of a microbatch")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--layers", type=int, help="instead of the model's own number")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--profile", help="file for a table of kernels")
    parser.add_argument("--record", type=pathlib.Path, default=record.FOLDER / "lm.jsonl")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print("ROW " + json.dumps(measure(arguments)), flush=True)
        return 0
    failed = 0
    for stack in arguments.stack.split(","):
        for precision in arguments.precision.split(","):
            own = [*sys.argv[1:], "--one", "--stack", stack, "--precision", precision]
            done = subprocess.run(
                [sys.executable, "-m", "tools.bench.lm", *own],
                capture_output=True,
                text=True,
            )
            row = next((line[4:] for line in done.stdout.splitlines() if line.startswith("ROW ")), None)
            if row is None:
                failed += 1
                print(f"{stack} {precision}: failed\n{done.stderr[-3000:]}", flush=True)
                continue
            figures = json.loads(row)
            record.append(arguments.record, figures)
            print(
                f"{stack:13} {precision:5} {figures['step_ms']:9.1f} ms {figures['tokens_per_second']:8d} tok/s"
                f" {figures['model_tflops']:7.1f} TFLOP/s  MFU {figures['mfu_of_989']:.3f}"
                f" {figures['peak_memory_gib']:6.1f} GiB  loss {figures['first_loss']} -> {figures['last_loss']}",
                flush=True,
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
