"""What kernels over runs of tokens share: finding a token's run, and how backward's programs divide the runs."""

# Triton types a kernel's arguments when it is launched.
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.tiles import covering_power_of_two

BACKWARD_PROGRAMS = 1024
"""About so many programs share the tokens in a backward; each leaves one partial sum of its run's gradients."""


@triton.jit
def run_of(token, bounds_ptr, runs, STEPS: tl.constexpr):
    """The last run that begins at or before `token`, by halving `runs` runs `STEPS` times."""
    low = runs * 0
    high = runs
    for _ in range(STEPS):
        middle = (low + high) // 2
        begins_before = tl.load(bounds_ptr + middle) <= token
        low = tl.where(begins_before, middle, low)
        high = tl.where(begins_before, high, middle)
    return low


def halvings(runs: int) -> int:
    """How many halvings leave one of `runs`."""
    return (runs - 1).bit_length()


def programs_of_a_run(runs: int, tokens: int) -> int:
    """How many programs take the tokens of each run in turn; a power of two, so that few kernels are compiled."""
    return covering_power_of_two(max(1, min(tokens, BACKWARD_PROGRAMS // max(runs, 1))))


def with_contiguous_vectors(x: Tensor) -> Tensor:
    """`x` itself if its vectors are contiguous, else a copy."""
    return x if x.stride(-1) == 1 else x.contiguous()
