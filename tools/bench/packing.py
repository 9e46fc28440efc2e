"""Packing on the length histograms under `mixes/`: `python -m tools.bench.packing`.

For each mix a data set of its shape is packed window by window, as training does it. Printed are the share of the
sequences' places that hold a token, and how fast packing plans and how fast packed sequences are read.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from loong_core.data.marks import mark
from loong_core.data.packed_samples import PackedSamples
from loong_core.data.token_store import TokenStore

MIXES = Path(__file__).parent / "mixes"
_SEQUENCES = 200  # so many at least, or the one sequence that is left over at the end decides


def mixes() -> dict[str, dict[str, Any]]:
    """Every histogram of lengths, by name (`pictures.json`, beside them, lists samples with images)."""
    found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(MIXES.glob("*.json"))}
    return {name: mix for name, mix in found.items() if "shortest_of_bin_and_count" in mix}


def lengths_of(mix: dict[str, Any]) -> list[int]:
    """Sample lengths of a data set with this histogram, each bin's spread evenly over its width."""
    width = 2 ** (1 / mix["bins_to_a_factor_of_two"])
    copies = max(1, -(-_SEQUENCES * mix["sequence_length"] // mix["tokens"]))
    lengths: list[int] = []
    for shortest, count in mix["shortest_of_bin_and_count"]:
        spread = np.linspace(shortest, max(shortest * width - 1, shortest), count * copies)
        lengths.extend(min(int(length), mix["longest"]) for length in spread)
    return lengths


def store_of(lengths: list[int]) -> TokenStore:
    """Samples of these lengths, wholly trained on."""
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    ids = mark(np.arange(bounds[-1]) % 50_000, np.ones(bounds[-1], np.bool_)).astype(np.int32)
    return TokenStore("mix", ids, bounds[:-1], np.diff(bounds), digest="mix")


def main() -> None:
    """Pack every mix and print a line for each."""
    for name, mix in mixes().items():
        store = store_of(lengths_of(mix))
        start = time.perf_counter()
        packed = PackedSamples(store, mix["sequence_length"], long_samples=mix["long_samples"])
        planned = time.perf_counter() - start
        start = time.perf_counter()
        tokens = sum(len(packed.sample(draw).tokens) for draw in range(packed.per_epoch))
        read = time.perf_counter() - start
        print(
            f"{name}: {packed.count}; planned {len(store) / planned / 1e3:,.0f} k samples/s, "
            f"read {tokens / read / 1e6:,.1f} M tokens/s"
        )


if __name__ == "__main__":
    main()
