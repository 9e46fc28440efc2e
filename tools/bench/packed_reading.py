"""How fast packed samples are read: `python -m tools.bench.packed_reading [--megatokens 200]`.

A store of samples with the lengths of `mixes/library_functions.json` is written to disk, packed into sequences of 4096
places, and read on one core as a training run reads it: samples unmarked, labelled, laid into microbatches. Printed are
tokens a second, and how much memory reading took beyond what was there.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from loong_core.data.marks import mark
from loong_core.data.packed_samples import PackedSamples
from loong_core.data.stream import Stream
from loong_core.data.token_store import TokenWriter, open_store

MIX = Path(__file__).parent / "mixes" / "library_functions.json"
VOCABULARY = 32_000
_BLOCK = 4096


def lengths_of_mix(count: int, generator: np.random.Generator) -> np.ndarray:
    """Lengths drawn from the mix's histogram, `[count]`, two tokens at least."""
    histogram = json.loads(MIX.read_text(encoding="utf-8"))["shortest_of_bin_and_count"]
    lengths, counts = np.array(histogram).T
    return np.maximum(generator.choice(lengths, count, p=counts / counts.sum()), 2)


def write_store(folder: Path, tokens: int) -> None:
    """Marked samples of about so many tokens, the second half of each trained on."""
    generator = np.random.default_rng(0)
    writer = TokenWriter(folder, 2 * VOCABULARY)
    written = 0
    while written < tokens:
        lengths = lengths_of_mix(_BLOCK, generator)
        ids = generator.integers(0, VOCABULARY, int(lengths.sum()), dtype=np.int64)
        ends = np.cumsum(lengths)
        position = np.arange(len(ids)) - np.repeat(ends - lengths, lengths)
        marked = mark(ids, position >= np.repeat(lengths // 2, lengths))
        writer.add(marked.astype(writer.dtype), lengths, np.ones(len(lengths), np.bool_), 0)
        written += len(ids)
    writer.finish({"kind": "benchmark"})


def main() -> None:
    """Write, pack, read, print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--megatokens", type=int, default=50)
    tokens = arguments.parse_args().megatokens * 1_000_000
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "store"
        folder.mkdir()
        write_store(folder, tokens)
        store = open_store(folder, "benchmark", verify=False)
        began = time.perf_counter()
        packed = PackedSamples(store, 4096)
        print(f"packed {len(store):,} samples in {time.perf_counter() - began:.1f} s: {packed.count}")
        stream = Stream([packed], global_batch_size=8, micro_batch_size=4)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        began, cpu, read = time.perf_counter(), time.process_time(), 0
        for _ in range(packed.per_epoch // 8):
            read += sum(len(batch.tokens) for batch in stream.next_step())
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        mapped = (folder / "tokens.bin").stat().st_size / 2**20
        print(
            f"read {read / 1e6:.0f} M places: {read / wall / 1e6:.2f} M/s of wall time, {read / cpu / 1e6:.2f} M/s of "
            f"one core's, {grown:,.0f} MiB more at the peak ({mapped:,.0f} MiB mapped)"
        )


if __name__ == "__main__":
    main()
