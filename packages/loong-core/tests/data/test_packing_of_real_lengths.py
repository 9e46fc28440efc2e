"""Packing fills at least 99 % of the places on every length histogram kept with the benchmarks."""

import importlib.util
from pathlib import Path

import pytest

from loong_core.data.packed_samples import PackedSamples

BENCH = Path(__file__).parents[4] / "tools" / "bench" / "packing.py"
SPEC = importlib.util.spec_from_file_location("bench_packing", BENCH)
bench = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(bench)


@pytest.mark.parametrize("name", bench.mixes())
def test_at_least_99_percent_of_the_places_hold_a_token(name):
    mix = bench.mixes()[name]
    lengths = bench.lengths_of(mix)
    packed = PackedSamples(bench.store_of(lengths), mix["sequence_length"], long_samples=mix["long_samples"])
    print(f"{name}: {packed.count}")
    assert packed.count.efficiency >= 0.99
    assert packed.count.lost_tokens == 0


@pytest.mark.parametrize("name", bench.mixes())
def test_every_histogram_tells_its_source(name):
    mix = bench.mixes()[name]
    assert "CPython" in mix["source"]
    assert sum(count for _, count in mix["shortest_of_bin_and_count"]) == mix["samples"]
