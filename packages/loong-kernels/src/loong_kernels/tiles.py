"""Arithmetic of tiles and launch grids."""

from __future__ import annotations


def tiles_over(total: int, tile: int) -> int:
    """How many tiles of `tile` cover `total`."""
    return -(-total // tile)


def covering_power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`, itself at least 1: what a Triton range must be."""
    return 1 << max(size - 1, 0).bit_length()


def warps_for(columns: int) -> int:
    """Warps of a program that holds one vector of so many columns, a power of two: a power of two of at most 16."""
    return min(16, max(1, columns // 256))
