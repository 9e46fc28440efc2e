"""How the logits `[tokens, vocabulary]` are cut into chunks that fit a memory budget.

Vocabulary chunks over all tokens come first: each row of the weight's gradient is then written once, and what is
accumulated is the small `[tokens, hidden]`. Tokens are cut only when there are so many that a chunk of all of them
would hold too few rows for the matrix products to run at full rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

ACCELERATOR_BUDGET = 1 << 29
"""Bytes of logits held at once on an accelerator. On an H200 with 8192 tokens, twice as much is 2 % faster."""
CPU_BUDGET = 1 << 26
FEWEST_ROWS = 4096
"""Vocabulary rows below which tokens are cut rather than rows."""
ROW_MULTIPLE = 128
"""Chunks are multiples of this many rows, whole tiles of a matrix product."""


@dataclass(frozen=True)
class ChunkPlan:
    """Which rows of the vocabulary and which tokens are taken together, as half-open ranges."""

    rows: list[tuple[int, int]]
    tokens: list[tuple[int, int]]


def plan_chunks(tokens: int, rows: int, budget: int, element_size: int, chunk_size: int | None) -> ChunkPlan:
    """Cut `tokens` x `rows` logits of `element_size` bytes so that a chunk stays within `budget` bytes.

    Args:
        tokens: tokens of the call.
        rows: vocabulary rows of this rank.
        budget: bytes of logits to hold at once.
        element_size: bytes of one logit.
        chunk_size: vocabulary rows at once if the caller chose; else the budget decides.
    """
    affordable = max(1, budget // element_size)
    if chunk_size is None:
        most = max(affordable // max(tokens, 1), min(FEWEST_ROWS, rows))
        chunks = max(1, math.ceil(rows / max(most, 1)))
        chunk_size = math.ceil(rows / chunks / ROW_MULTIPLE) * ROW_MULTIPLE
    chunk_size = max(1, min(chunk_size, rows))
    token_blocks = max(1, math.ceil(tokens * chunk_size / affordable))
    return ChunkPlan(_ranges(rows, chunk_size), _ranges(tokens, max(1, math.ceil(tokens / token_blocks))))


def _ranges(total: int, step: int) -> list[tuple[int, int]]:
    return [(start, min(start + step, total)) for start in range(0, total, step)]
