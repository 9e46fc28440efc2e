"""Training steps of vision-language models, ours against transformers', and ours on two devices in each layout.

    python -m tools.bench.vlm                                  # both models on one device, stack against stack
    python -m tools.bench.vlm --two                            # all layouts of two devices, with their trace tables
    python -m tools.bench.vlm --tiny [--two]                   # the same at a size for a CPU, to see that it runs

Samples are drawn from the kept mix of pictures and lengths (`mixes/pictures.json`) and packed to 32,768 tokens; words
and pixels are random, the same for every stack. Every parameter is trained; AdamW and clipping are included. Each row
runs in processes of its own and gives the median step, tokens/s, model TFLOP/s (causal attention within samples), MFU
against the data sheet's dense bf16 peak, peak memory, and the loss of the first and last step (from the same weights
with `--same-weights`). On several devices one further step is watched: when each rank encodes and runs each microbatch,
and the share of it in which a device computes nothing. A form of attention that is not installed is told and left out.
Records are appended to docs/benchmarks/vlm.jsonl.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from tools.bench import record
from tools.bench.scaling import covered

STACKS = ("loong", "transformers-flash", "transformers-flex", "transformers-sdpa")
MODELS = {"qwen3-vl-30b-a3b-l8": 1.5, "qwen2.5-vl-7b-l8": 1.25}
"""Models, and how many times as fast as the fastest other stack ours is to be."""
TINY_MODELS = {"tiny-qwen3-vl": 0.0, "tiny-qwen2.5-vl": 0.0}
PLACES = ("tensor 2", "tensor 2, encoder 2", "tensor 2, encoder 1", "pipeline 2", "pipeline 2, encoder apart")


def measure(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """Run one row in this process, one of its ranks; the figures are the first rank's."""
    import torch
    import torch.distributed as dist

    from tools.bench.vlm_stacks.work import Work

    device = "cuda" if torch.cuda.is_available() else "cpu"
    work = Work(arguments.model, arguments.sequence, arguments.microbatches, device)
    name, _, arguments.attention = arguments.stack.partition("-")
    stack = importlib.import_module(f"tools.bench.vlm_stacks.{name}")
    if name == "transformers" and (missing := stack.missing(arguments.attention)):
        return {"stack": arguments.stack, "missing": missing}
    weights = pathlib.Path(arguments.weights) if arguments.weights else None
    step = stack.build(work, weights, arguments)
    work.batches(0)  # made before a step is timed
    synchronize = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    seconds, losses, rates, flops = [], [], [], []
    for number in range(arguments.warmup + arguments.steps):
        synchronize()
        start = time.perf_counter()
        losses.append(step(number))
        synchronize()
        seconds.append(time.perf_counter() - start)
        rates.append(work.tokens(number) / seconds[-1])
        flops.append(work.flops(number) / seconds[-1])
    timed = slice(arguments.warmup, None)
    ranks = dist.get_world_size() if dist.is_initialized() else 1
    peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    rate = statistics.median(flops[timed]) / ranks
    figures: dict[str, Any] = {
        "stack": arguments.stack,
        "model": arguments.model,
        "place": arguments.place,
        "ranks": ranks,
        "sequence": work.sequence,
        "microbatches": work.microbatches,
        "recompute": arguments.recompute,
        "step_ms": round(1e3 * statistics.median(seconds[timed]), 1),
        "tokens_per_second": round(statistics.median(rates[timed])),
        "model_tflops": round(rate / 1e12, 3),
        "mfu_of_989": round(rate / 989e12, 4),
        "peak_memory_gib": round(peak, 1),
        "first_loss": round(losses[0], 5),
        "last_loss": round(losses[-1], 5),
        "note": stack.NOTE,
    }
    if ranks > 1:
        told: list[Any] = [None] * ranks
        dist.all_gather_object(told, watch(step, device))
        figures |= {"idle": [own["idle"] for own in told], "trace": [own["trace"] for own in told]}
        if dist.get_rank() > 0:
            return None
    return figures


def watch(step: Any, device: str) -> dict[str, Any]:
    """This rank's work in one step in milliseconds, and the share of another in which its device computes nothing."""
    import torch

    marks = step.watched(0)
    first = marks[0].start
    trace = [
        [mark.what, mark.number, round(first.elapsed_time(mark.start), 2), round(first.elapsed_time(mark.stop), 2)]
        for mark in marks
    ]
    if device != "cuda":
        return {"idle": None, "trace": trace}
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        step(0)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "trace.json.gz"
        profile.export_chrome_trace(str(file))
        return {"idle": idle_share(file), "trace": trace}


def idle_share(trace: pathlib.Path) -> float | None:
    """Share of a device's recorded time in which no kernel but those of communication runs; None without kernels."""
    with gzip.open(trace, "rt", encoding="utf-8") as stream:
        events = json.load(stream)["traceEvents"]
    spans = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "kernel" and "nccl" not in event["name"]
    ]
    if not spans:
        return None
    whole = max(stop for _, stop in spans) - min(start for start, _ in spans)
    return round(1 - covered(spans) / whole, 4)


def run_row(arguments: argparse.Namespace, own: list[str], ranks: int) -> dict[str, Any] | None:
    """A row's figures, from processes of its own; None, with the end of what they said, where they failed."""
    start = [sys.executable, "-m"]
    if ranks > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]
    given = {
        "--sequence": arguments.sequence,
        "--microbatches": arguments.microbatches,
        "--warmup": arguments.warmup,
        "--steps": arguments.steps,
    }
    command = [*start, "tools.bench.vlm", "--one", *own, *(str(each) for pair in given.items() for each in pair)]
    command += ["--recompute"] * arguments.recompute + ["--no-compile"] * (not arguments.compile)
    done = subprocess.run(command, capture_output=True, text=True)
    row = next((line[4:] for line in done.stdout.splitlines() if line.startswith("ROW ")), None)
    if row is None:
        print(f"{' '.join(own)}: failed, status {done.returncode}\n{done.stderr[-3000:]}", flush=True)
        return None
    return json.loads(row)


def tell(figures: dict[str, Any]) -> None:
    """One line for people, and the trace of a row that has one."""
    idle = "".join(f"  rank {rank} idle {share:.1%}" for rank, share in enumerate(figures.get("idle", [])) if share)
    print(
        f"{figures['model']:20} {figures['stack']:18} {figures['place']:26} {figures['step_ms']:9.1f} ms "
        f"{figures['tokens_per_second']:8d} tok/s {figures['model_tflops']:7.1f} TFLOP/s "
        f"MFU {figures['mfu_of_989']:.1%} {figures['peak_memory_gib']:6.1f} GiB, "
        f"loss {figures['first_loss']} to {figures['last_loss']}{idle}",
        flush=True,
    )
    for rank, trace in enumerate(figures.get("trace", [])):
        for what, number, start, stop in trace:
            print(f"    rank {rank}  {start:9.2f} ms to {stop:9.2f} ms  {what} {number}")


def compare(arguments: argparse.Namespace, models: dict[str, float]) -> bool:
    """The rows of one device; whether all of them ran."""
    fine = True
    for model, least in models.items():
        with tempfile.TemporaryDirectory() as folder:
            own = ["--model", model, "--place", "one"]
            if arguments.same_weights:
                made = run_row(arguments, [*own, "--make", folder], 1)
                own, fine = [*own, "--weights", folder], fine and made is not None
            rows: dict[str, dict[str, Any]] = {}
            for stack in arguments.stacks.split(","):
                figures = run_row(arguments, [*own, "--stack", stack], 1)
                if figures is None:
                    fine = False
                elif "missing" in figures:
                    print(f"{model} {stack}: left out, {figures['missing']}")
                else:
                    rows[stack] = figures
                    record.append(arguments.record, figures)
                    tell(figures)
        others = [row["tokens_per_second"] for stack, row in rows.items() if stack != "loong"]
        if "loong" in rows and others:
            ratio = rows["loong"]["tokens_per_second"] / max(others)
            print(f"{model}: loong is {ratio:.2f} x the fastest other stack; at least {least} is wanted")
    return fine


def spread(arguments: argparse.Namespace, models: dict[str, float]) -> bool:
    """The rows of two devices; whether all of them ran."""
    fine = True
    for model in models:
        for place in arguments.places.split("; ") if arguments.places else PLACES:
            figures = run_row(arguments, ["--model", model, "--place", place, "--stack", "loong"], 2)
            if figures is None:
                fine = False
                continue
            record.append(arguments.record, figures)
            tell(figures)
    return fine


def main() -> int:
    """Run the rows asked for and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", help="of " + ", ".join([*MODELS, *TINY_MODELS]))
    parser.add_argument("--places", help="of " + "; ".join(PLACES) + " (with semicolons between)")
    parser.add_argument("--stacks", default=",".join(STACKS), help="of " + ", ".join(STACKS))
    parser.add_argument("--two", action="store_true", help="the layouts of two devices, in place of the stacks on one")
    parser.add_argument("--tiny", action="store_true", help="a size for a CPU; stacks begin with the same weights")
    parser.add_argument("--same-weights", action="store_true", help="all stacks begin with the same weights, on disk")
    parser.add_argument("--sequence", type=int, default=32_768)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--recompute", action="store_true", help="blocks keep their inputs only, in every stack")
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="transformers' layers as they are")
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--record", type=pathlib.Path, default=record.FOLDER / "vlm.jsonl")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    for hidden in ("--make", "--weights", "--model", "--place", "--stack"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        figures = make_weights(arguments) if arguments.make else measure(arguments)
        if figures is not None:
            print("ROW " + json.dumps(figures), flush=True)
        return 0
    if arguments.tiny:
        arguments.sequence, arguments.microbatches, arguments.same_weights, arguments.compile = 512, 4, True, False
        arguments.warmup, arguments.steps = 1, 2
    models = TINY_MODELS if arguments.tiny else MODELS
    if arguments.models:
        models = {name: (MODELS | TINY_MODELS)[name] for name in arguments.models.split(",")}
    return 0 if (spread if arguments.two else compare)(arguments, models) else 1


def make_weights(arguments: argparse.Namespace) -> dict[str, Any]:
    """Write a folder of fresh weights, as transformers draws them."""
    from tools.bench.vlm_stacks.transformers import make_model
    from tools.bench.vlm_stacks.work import Work

    model: Any = make_model(Work(arguments.model, arguments.sequence, arguments.microbatches, "cpu"), "sdpa")
    model.save_pretrained(arguments.make)
    return {"weights": arguments.make}


if __name__ == "__main__":
    sys.exit(main())
