"""How fast models and checkpoints go to and from disk: `python -m tools.bench.checkpoints [--billions 0.2]`.

In one run, on one disk: loading and saving a Hugging Face folder beside plain sequential reads and writes of the same
bytes; a resume checkpoint of `--nproc` ranks loaded under another layout; and how long training stands still while a
checkpoint is saved asynchronously. Reads are of files that were just written, so from the page cache where memory holds
them, for both sides alike and in turn; `--cold` drops them before each read where the kernel allows it. A plain read
keeps what it reads, as loading does: where files are cached, half its time is the kernel's to give it memory; the
figure beside it is of one buffer used again and again. Writes end when bytes are on disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from time import perf_counter
from typing import Any

import torch

from loong_core.checkpoint.hf_export import export_hf
from loong_core.checkpoint.pieces import StatePiece
from loong_core.checkpoint.resume import Checkpointer
from loong_core.data.batch import PackedBatch
from loong_core.device import select
from loong_core.engine.base import Engine
from loong_core.engine.choice import build_engine
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.parallel.pool import RankPool
from loong_core.parallel.ranks import initialise_from_env, leave
from loong_llm.model import build_stages, open_model
from loong_llm.recipes.next_token import next_token_loss
from tools.bench import record

CHUNK = 64 << 20
TRIALS = 5
SHAPES = {
    0.2: {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 10, "vocab_size": 32_768},
    1.0: {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 14, "vocab_size": 32_768},
}
FIXED = {"model_type": "llama", "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64}


def medians(*actions: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> list[float]:
    """Seconds of each, the median of a few trials in which they take turns."""
    found: list[list[float]] = [[] for _ in actions]
    for _ in range(TRIALS):
        for action, seconds in zip(actions, found, strict=True):
            prepare()
            begin = perf_counter()
            action()
            seconds.append(perf_counter() - begin)
    return [median(seconds) for seconds in found]


def plain_write(files: Sequence[bytes], folder: Path) -> None:
    """Bytes that are in memory into files of a folder, one after the other, flushed."""
    for number, data in enumerate(files):
        with (folder / f"{number}.safetensors").open("wb", buffering=0) as stream:
            for start in range(0, len(data), CHUNK):
                stream.write(memoryview(data)[start : start + CHUNK])
            os.fsync(stream.fileno())


def plain_read(folder: Path) -> list[bytes]:
    """Every byte of a folder's weights, one file after the other."""
    kept = []
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb", buffering=0) as stream:
            kept.append(stream.read())
    return kept


def plain_read_again(folder: Path) -> None:
    """The same into one buffer, over what was read before."""
    buffer = bytearray(CHUNK)
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def drop(folder: Path) -> None:
    """Ask the kernel to forget a folder's files."""
    for file in folder.rglob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def exchange_format(folder: Path, cold: bool) -> dict[str, float]:
    """Seconds of loading and saving a Hugging Face folder, and of plain reads and writes of its bytes."""
    source, context = open_model(folder), ParallelContext.single()
    stages = build_stages(source, context, dtype=torch.bfloat16, initialise="random")
    state = [
        StatePiece("weight", piece, part)
        for stage in stages
        for parameter, placement in source.weight_map.placements(stage, context)
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True)
    ]
    written = folder / "written"

    def save() -> None:
        export_hf(written, source.hf_config, state, context, torch.bfloat16, replace=True)

    save()
    size = sum(file.stat().st_size for file in written.glob("*.safetensors"))
    copy = folder / "plain"
    copy.mkdir()
    data = plain_read(written)
    save_seconds, write_seconds = medians(save, lambda: plain_write(data, copy))
    opened = open_model(written)

    def forget() -> None:
        if cold:
            drop(folder)

    load_seconds, read_seconds, again_seconds = medians(
        lambda: build_stages(opened, context, dtype=torch.bfloat16, initialise="weights"),
        lambda: plain_read(written),
        lambda: plain_read_again(written),
        prepare=forget,
    )
    return {
        "bytes": size,
        "hf_save_seconds": save_seconds,
        "plain_write_seconds": write_seconds,
        "save_share_of_plain": write_seconds / save_seconds,
        "hf_load_seconds": load_seconds,
        "plain_read_seconds": read_seconds,
        "plain_read_into_one_buffer_seconds": again_seconds,
        "load_share_of_plain": read_seconds / load_seconds,
    }


def _engine(folder: Path, layout: Layout, settings: EngineSettings) -> tuple[Engine, ParallelContext]:
    selection = select("auto")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    context = ParallelContext.build(layout, selection.device.bind(local))
    source = open_model(folder)
    stages = [
        stage.to(context.device)
        for stage in build_stages(source, context, dtype=settings.dtype, initialise="random", seed=1)
    ]
    engine = build_engine(
        "megatron", stages, source.weight_map, context, selection.device, settings,
        hidden_size=source.config.hidden_size,
    )  # fmt: skip
    return engine, context


def _step(engine: Engine, device: torch.device, tokens: int) -> float:
    ids = torch.arange(tokens + 1) % 1000
    batch = PackedBatch.from_lengths(ids[:-1], ids[1:], [tokens]).to(device)
    begin = perf_counter()
    engine.accumulate([batch], next_token_loss)
    engine.apply(1e-4)
    engine.grad_norm()
    engine.device.synchronize()
    return perf_counter() - begin


def saving_ranks(folder: Path, layout: Layout, precision: Any, tokens: int) -> dict[str, float]:
    """On a rank: steps alone, one with a save begun in it, and those beside the writer; then the checkpoint's end."""
    engine, context = _engine(folder, layout, EngineSettings(precision=precision))
    alone = median([_step(engine, context.device, tokens) for _ in range(4)][1:])
    checkpoints = Checkpointer(folder / "checkpoints", context=context)
    begin = perf_counter()
    checkpoints.save(1, engine, {})
    stall = perf_counter() - begin
    beside = []
    while checkpoints.poll() is None:
        beside.append(_step(engine, context.device, tokens))
    return {
        "step_seconds": alone,
        "save_stall_seconds": stall,
        "save_stall_in_steps": stall / alone,
        "save_seconds": perf_counter() - begin,
        "step_seconds_beside_writer": median(beside) if beside else alone,
    }


def loading_ranks(folder: Path, layout: Layout, precision: Any) -> float:
    """On a rank: seconds of loading the checkpoint, hashes checked."""
    engine, context = _engine(folder, layout, EngineSettings(precision=precision))
    checkpoints = Checkpointer(folder / "checkpoints", context=context)
    begin = perf_counter()
    checkpoints.load(engine)
    engine.device.synchronize()
    return perf_counter() - begin


def resume_format(folder: Path, nproc: int, tokens: int) -> dict[str, Any]:
    """Seconds of an asynchronous save beside steps, and of loading what it saved under another layout."""
    accelerated = select("auto").device.name != "cpu"
    precision = "bf16" if accelerated else "fp32"
    ranks = 1 if accelerated else nproc
    with _caller(ranks, accelerated) as call:
        saved = call(saving_ranks, folder, Layout(), precision, tokens)
        figures: dict[str, Any] = {key: max(each[key] for each in saved) for key in saved[0]}
        size = sum(file.stat().st_size for file in (folder / "checkpoints").rglob("*.safetensors"))
        figures["checkpoint_bytes"] = size
        figures["reshard"] = f"{ranks} data ranks to {ranks} tensor ranks"
        figures["reshard_load_seconds"] = max(call(loading_ranks, folder, Layout(tensor=ranks), precision))
    return figures


@contextmanager
def _caller(ranks: int, accelerated: bool) -> Iterator[Callable[..., list[Any]]]:
    """What calls a function on every rank: a pool's on the host; on an accelerator this process is the only one.

    A pool's ranks talk by gloo alone, which does not carry an accelerator's tensors in every collective of an engine.
    """
    if accelerated:
        initialise_from_env(select("auto").device)
        try:
            yield lambda function, *arguments: [function(*arguments)]
        finally:
            leave()
    else:
        with RankPool(ranks) as pool:
            yield lambda function, *arguments: pool.run(ranks, function, *arguments, timeout=1200)


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--billions", type=float, choices=tuple(SHAPES), default=0.2)
    parser.add_argument("--nproc", type=int, default=2, help="ranks that save (on CPU; one on an accelerator)")
    parser.add_argument("--tokens", type=int, default=512, help="of a step beside which a checkpoint is saved")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; a temporary one by default")
    parser.add_argument("--only", choices=("folders", "resume"), help="Hugging Face folders, or resume checkpoints")
    parser.add_argument("--cold", action="store_true", help="ask the kernel to forget files before they are read")
    options = parser.parse_args()
    folder = Path(mkdtemp(dir=options.folder, prefix="bench-checkpoints-"))
    try:
        (folder / "config.json").write_text(json.dumps(FIXED | SHAPES[options.billions]))
        figures: dict[str, Any] = {
            "parameters": open_model(folder).config.parameter_count(),
            "cold": options.cold,
            "load_of_machine": os.getloadavg()[0],
        }
        if options.only != "resume":
            figures |= exchange_format(folder, options.cold)
        if options.only != "folders":
            figures |= resume_format(folder, options.nproc, options.tokens)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for name, value in figures.items():
        print(f"{name:28} {value:,.3f}" if isinstance(value, float) else f"{name:28} {value}")
    record.append(record.FOLDER / "checkpoints.jsonl", figures)


if __name__ == "__main__":
    sys.exit(main())
