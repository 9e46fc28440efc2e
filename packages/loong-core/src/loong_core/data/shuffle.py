"""Shuffles that are the same on every rank, machine and library version: integer arithmetic and a sort."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_SPLIT_KEY = 20


def permutation(size: int, *key: int) -> NDArray[np.int64]:
    """`[size]`, the numbers below `size` in an order that only `size` and the integers of `key` decide.

    Each number is scrambled by the finaliser of SplitMix64 (Steele, Lea and Flood 2014), a bijection of 64-bit
    integers, so that the sorted keys have no ties.
    """
    seed = 0
    for part in key:
        seed = _scramble_one((seed + _GAMMA + (part & _MASK)) & _MASK)
    indices = np.arange(size, dtype=np.uint64)
    with np.errstate(over="ignore"):
        keys = _scramble((indices + np.uint64(1)) * np.uint64(_GAMMA) + np.uint64(seed))
    return np.argsort(keys)


def held_out_split(size: int, fraction: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The numbers below `size` to train on and those to hold out, each ascending; only `size` and `fraction` decide.

    Of two or more at least one is held out and at least one kept.
    """
    order = permutation(size, _SPLIT_KEY)
    count = min(max(round(size * fraction), 1), size - 1)
    return np.sort(order[count:]), np.sort(order[:count])


def _scramble(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _scramble_one(value: int) -> int:
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
