"""Calls of `swiglu` that every implementation is checked on."""

from __future__ import annotations

from collections.abc import Iterator

from loong_kernels.conformance.sample import Sample, in_both_dtypes, laid_out, normal
from loong_kernels.ops.swiglu import swiglu


def samples() -> Iterator[Sample]:
    """Edge sizes, odd sizes, strides, dtypes, and the options of the public function."""

    def sample(name: str, tokens: int, intermediate: int) -> Sample:
        return Sample(
            "swiglu",
            name,
            lambda generator: {"gate_up": 3 * normal(generator, tokens, 2 * intermediate)},
            lambda t: swiglu(t["gate_up"]),
        )

    plain = sample("odd sizes", 7, 33)
    for one in (plain, sample("one token", 1, 64), sample("one element", 2, 1), sample("long", 2, 1500)):
        yield from in_both_dtypes(one)
    yield from laid_out(plain, "gate_up")
