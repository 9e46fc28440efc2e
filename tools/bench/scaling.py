"""`loong-llm train` on several devices under each kind of layout, beside one device.

    python -m tools.bench.scaling                                    # two GPUs, 8 layers of Qwen3-8B, 8192 tokens
    python -m tools.bench.scaling --model tiny --sequence 128        # the same on a CPU, to see that it runs

Every row is a run of the train command from random weights on Python's own help texts: 8 sequences a step for each data
rank, one a microbatch, attention over whole sequences, bf16 with float32 main weights, optimizer and clipping included.
Tokens/s are the median of the steps after `--warmup`. One further step is profiled: the share of it in which a device
communicates, and in which it does nothing else (the exposed share), over all ranks. Records go to
docs/benchmarks/scaling.jsonl.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pathlib
import pydoc_data.topics
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from tools.bench import record

LAYOUTS: dict[str, tuple[int, dict[str, int]]] = {
    "one": (1, {}),
    "data 2": (2, {}),
    "tensor 2": (2, {"tensor": 2}),
    "pipeline 2": (2, {"pipeline": 2}),
    "context 2": (2, {"context": 2}),
    "expert 2": (2, {"expert": 2}),
}
"""Ranks and degrees of each row."""
MODELS = {
    "qwen3-8b-l8": ("qwen3-8b", {"num_hidden_layers": 8}, "bf16"),
    "qwen3-30b-a3b-l8": ("qwen3-30b-a3b", {"num_hidden_layers": 8}, "bf16"),
    "tiny": (
        "qwen3-0.6b",
        {"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 259},
        "fp32",
    ),
}
"""Named config, what is made smaller, and the precision."""
SEQUENCES = 8
"""A step's, for each data rank."""


def write_text(file: pathlib.Path, tokens: int) -> None:
    """At least `tokens` bytes of help texts, a topic a line."""
    topics = [json.dumps({"text": text}) for text in pydoc_data.topics.topics.values()]
    times = 1 + tokens // sum(map(len, topics))
    file.write_text("\n".join(topics * times) + "\n", encoding="utf-8")


def train(name: str, arguments: argparse.Namespace, folder: pathlib.Path) -> dict[str, object]:
    """One row.

    Raises:
        RuntimeError: the command failed; holds the end of what it said.
    """
    ranks, degrees = LAYOUTS[name]
    source, overrides, precision = MODELS[arguments.model]
    data_ranks = ranks if not degrees or "expert" in degrees else 1
    last = arguments.warmup + arguments.steps
    output = folder / name.replace(" ", "_")
    run = {
        "output": str(output),
        "model": {"source": source, "overrides": overrides},
        "tokenizer": "bytes",
        "precision": precision,
        "layout": degrees,
        "data": {
            "train": str(folder / "text.jsonl"),
            "sequence_length": arguments.sequence,
            "attend_across_documents": True,
            "cache": str(folder / "cache"),
        },
        "train": {
            "steps": last + 1000,
            "global_batch_size": SEQUENCES * data_ranks,
            "micro_batch_size": 1,
            "warmup_steps": 1,
            "profile": {"steps": [last + 1, last + 1]},
        },
        "checkpoint": {"every": None},
        "logging": {"every": 1},
    }
    file = folder / "run.yaml"
    file.write_text(json.dumps(run), encoding="utf-8")  # JSON is YAML
    rows = rows_until(last + 2, ["loong-llm", "train", str(file), "--nproc", str(ranks)], output)
    timed = [row for row in rows if arguments.warmup < row["step"] <= last]
    shares = [communication(trace) for trace in sorted(output.glob("profile/trace-rank-*.json.gz"))]
    told = [share for share in shares if share is not None]
    return {
        "model": arguments.model,
        "layout": name,
        "ranks": ranks,
        "sequence": arguments.sequence,
        "global_batch_size": SEQUENCES * data_ranks,
        "tokens_per_second_per_rank": round(statistics.median(row["tokens_per_second"] for row in timed) / ranks),
        "mfu": round(statistics.median(row["mfu"] for row in timed), 4) if timed[0]["mfu"] else None,
        "peak_memory_gib": round(max(row["memory_bytes"] for row in rows) / 2**30, 1),
        "communicating": round(max(share for share, _ in told), 3) if told else None,
        "exposed": round(max(share for _, share in told), 3) if told else None,
        "last_loss": timed[-1]["loss"],
    }


def rows_until(step: int, command: list[str], output: pathlib.Path) -> list[dict]:
    """Metrics of a run that is killed once it has taken `step` steps: what follows, its checkpoint, is not measured.

    Raises:
        RuntimeError: the command ended before; holds the end of what it said.
    """
    metrics, log = output / "metrics.jsonl", output.with_suffix(".log")
    with log.open("w") as stream:
        run = subprocess.Popen(command, stdout=stream, stderr=subprocess.STDOUT)
        try:
            while True:
                lines = metrics.read_text().splitlines() if metrics.exists() else []
                if len(lines) > step:  # the last line may be in writing
                    return [json.loads(line) for line in lines[:step]]
                if run.poll() is not None:
                    raise RuntimeError(f"{command}: status {run.returncode}\n{log.read_text()[-3000:]}")
                time.sleep(0.2)
        finally:
            if run.poll() is None:
                kill_with_ranks(run.pid)
                run.wait()


def kill_with_ranks(launcher: int) -> None:
    """Kill the command and the ranks it started, which would take its death for a signal to save and end."""
    ranks = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    for process in (*map(int, ranks), launcher):
        os.kill(process, signal.SIGKILL)


def communication(trace: pathlib.Path) -> tuple[float, float] | None:
    """Shares of a device's recorded time in which it communicates, and in which it only communicates; None on a CPU."""
    with gzip.open(trace, "rt", encoding="utf-8") as stream:
        events = json.load(stream)["traceEvents"]
    spans = [
        (event["ts"], event["ts"] + event["dur"], "nccl" in event["name"])
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    if not spans:
        return None
    whole = max(end for _, end, _ in spans) - min(start for start, _, _ in spans)
    total = covered([(start, end) for start, end, sends in spans if sends])
    busy = covered([(start, end) for start, end, _ in spans])
    computing = covered([(start, end) for start, end, sends in spans if not sends])
    return total / whole, (busy - computing) / whole


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total


def main() -> int:
    """Run the rows asked for and print their table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(MODELS), default="qwen3-8b-l8")
    parser.add_argument(
        "--layouts", default="one,data 2,tensor 2,pipeline 2,context 2", help="of " + ", ".join(LAYOUTS)
    )
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--record", type=pathlib.Path, default=record.FOLDER / "scaling.jsonl")
    arguments = parser.parse_args()
    failed, alone = False, None
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_text(folder / "text.jsonl", 40 * SEQUENCES * arguments.sequence)
        for name in arguments.layouts.split(","):
            try:
                figures = train(name, arguments, folder)
            except RuntimeError as error:
                print(error, flush=True)
                failed = True
                continue
            rate = int(str(figures["tokens_per_second_per_rank"]))
            alone = rate if name == "one" else alone
            figures["of_one"] = round(rate / alone, 3) if alone else None
            record.append(arguments.record, figures)
            print("  ".join(f"{key} {value}" for key, value in figures.items()), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
