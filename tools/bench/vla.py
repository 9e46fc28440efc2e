"""Training steps of Pi0.5 or GR00T N1.7, ours against lerobot's, on the same work.

    python -m tools.bench.vla --stack loong,lerobot,lerobot-compiled
    python -m tools.bench.vla --policy groot --stack loong,lerobot

Each stack runs in a process of its own on one device: 8 samples, 2 cameras, AdamW and clipping included.
Pi0.5: pictures of 224 x 224, prompts of 50 to 60 tokens, every parameter trained; lerobot as its recipe has it
(bfloat16, recomputation), and with recomputation off and compiled by its own setting (`compile_model`, whose scope is
the whole `forward`; `--compile-mode` is lerobot's `compile_mode`). GR00T: pictures of 256 x 256, the backbone frozen;
lerobot's policy has no setting to compile.

Compiling has its own time and is no part of a row's steps: before `--warmup` a compiled stack takes four steps or more,
until one takes less than twice the shortest or `--compile-limit` seconds have gone, and what they took is told. A row
gives the median step of `--steps`, samples/s, model TFLOP/s (as our form computes it), MFU and peak memory. A record is
appended to docs/benchmarks/vla.jsonl.
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

STACKS = {
    "loong": ("loong", True),
    "loong-eager": ("loong", False),
    "lerobot": ("lerobot", False),
    "lerobot-compiled": ("lerobot", True),
}


def measure(arguments: argparse.Namespace) -> dict[str, object]:
    """Run one stack in this process."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    name, compiled = STACKS[arguments.stack]
    prompt = (arguments.prompt[0], arguments.prompt[1])
    if arguments.policy == "groot":
        from tools.bench.vla_stacks.groot_work import work_of

        stack = importlib.import_module(f"tools.bench.vla_stacks.groot_{name}")
        work = work_of(arguments.size, arguments.layers, arguments.batch, prompt, device, compiled)
    else:
        from loong_vla.families.pi.config import PiSizes
        from tools.bench.vla_stacks.work import TINY, Work, shrunk

        stack = importlib.import_module(f"tools.bench.vla_stacks.{name}")
        sizes = TINY if arguments.size == "tiny" else shrunk(PiSizes(), arguments.layers)
        work = Work(sizes, arguments.batch, prompt, device, compiled, arguments.compile_mode)
    step = stack.build(work)
    synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    seconds, losses = [], []

    def timed() -> float:
        synchronize()
        start = time.perf_counter()
        losses.append(step(len(losses)))
        synchronize()
        return time.perf_counter() - start

    begin = time.perf_counter()
    early = [timed()]
    while compiled and time.perf_counter() - begin < arguments.compile_limit:
        early.append(timed())
        if early[-1] < 2 * min(early) and len(early) > 3:
            break
    compile_seconds = time.perf_counter() - begin
    for _ in range(arguments.warmup + arguments.steps):
        seconds.append(timed())
    if arguments.profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            step(0)
            synchronize()
        table = profile.key_averages().table(sort_by="cuda_time_total", row_limit=40, max_name_column_width=90)
        pathlib.Path(arguments.profile).write_text(table)
    median = statistics.median(seconds[arguments.warmup :])
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return {
        "policy": arguments.policy,
        "stack": arguments.stack,
        "size": arguments.size,
        "layers": work.layers,
        "batch": work.batch,
        "step_ms": round(median * 1e3, 1),
        "samples_per_second": round(work.batch / median, 2),
        "model_tflops": round(work.flops / median / 1e12, 1),
        "mfu_of_989": round(work.flops / median / 989e12, 4),
        "peak_memory_gib": round(peak, 1),
        "first_steps_s": round(compile_seconds, 1),
        "first_loss": round(losses[0], 4),
        "last_loss": round(losses[-1], 4),
        "note": stack.NOTE,
    }


def main() -> int:
    """Run the stacks asked for and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", choices=["pi05", "groot"], default="pi05")
    parser.add_argument("--stack", default="loong,lerobot,lerobot-compiled", help="of " + ", ".join(STACKS))
    parser.add_argument("--size", choices=["full", "tiny"], default="full")
    parser.add_argument("--layers", type=int, help="of both streams, instead of 18; of GR00T's VLM, instead of 16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--prompt", type=int, nargs=2, default=[50, 60], help="shortest and longest, in tokens")
    parser.add_argument("--compile-limit", type=float, default=480.0, help="seconds that first steps may take")
    parser.add_argument("--compile-mode", default="default", help="of lerobot-compiled; its own is max-autotune")
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--profile", help="file for a table of kernels")
    parser.add_argument("--record", type=pathlib.Path, default=record.FOLDER / "vla.jsonl")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print("ROW " + json.dumps(measure(arguments)), flush=True)
        return 0
    rows: dict[str, dict] = {}
    for stack in arguments.stack.split(","):
        own = [*sys.argv[1:], "--one", "--stack", stack]
        done = subprocess.run([sys.executable, "-m", "tools.bench.vla", *own], capture_output=True, text=True)
        row = next((line[4:] for line in done.stdout.splitlines() if line.startswith("ROW ")), None)
        if row is None:
            print(f"{stack}: failed\n{done.stderr[-3000:]}", flush=True)
            continue
        rows[stack] = figures = json.loads(row)
        record.append(arguments.record, figures)
        print(
            f"{stack:17} {figures['step_ms']:9.1f} ms {figures['samples_per_second']:8.2f} samples/s "
            f"{figures['model_tflops']:7.1f} TFLOP/s MFU {figures['mfu_of_989']:.1%} "
            f"{figures['peak_memory_gib']:6.1f} GiB, loss {figures['first_loss']} to {figures['last_loss']}, "
            f"first steps {figures['first_steps_s']} s",
            flush=True,
        )
    for stack in rows.keys() - {"loong", "loong-eager"}:
        if "loong" in rows:
            ratio = rows["loong"]["samples_per_second"] / rows[stack]["samples_per_second"]
            print(f"loong is {ratio:.2f} x {stack}")
    return 0 if len(rows) == len(arguments.stack.split(",")) else 1


if __name__ == "__main__":
    sys.exit(main())
