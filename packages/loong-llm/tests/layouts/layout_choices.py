"""Which experts routers chose, by step and microbatch, whatever ranks the tokens were on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from loong_core.data.batch import PackedBatch
from loong_core.data.context_cut import own_shares
from loong_core.parallel.context import ParallelContext

Rows = list[tuple[int, Tensor]]
"""Of each microbatch of a rank: its number in the step, and which of its rows the rank has."""

Choices = dict[tuple[int, int, str], tuple[Tensor, Tensor]]
"""By step, microbatch and router: rows of the microbatch, and the experts chosen for them, `[rows, top_k]` sorted."""


def own_rows(microbatches: Sequence[PackedBatch], context: ParallelContext) -> Rows:
    """Of this data rank's microbatches the rows that this context rank has."""
    numbered = [replace(batch, tokens=torch.arange(batch.tokens.shape[0])) for batch in microbatches]
    numbers = range(context.data.rank, len(microbatches) * context.data.size, context.data.size)
    return list(zip(numbers, [part.tokens for part in own_shares(numbered, context)], strict=True))


def by_microbatch(recorded: Mapping[str, list[Tensor]], rows: Rows, step: int) -> Choices:
    """What `recorded_choices` recorded, forward by forward, as the choices of a step's microbatches."""
    found: Choices = {}
    for name, forwards in recorded.items():
        for (microbatch, held), chosen in zip(rows, forwards, strict=True):
            found[step, microbatch, name] = (held, chosen[: held.shape[0]])
    return found


def differing(choices_of_ranks: Iterable[Choices], expected: Choices) -> tuple[int, int]:
    """How many choices of experts differ from those of one rank, of how many."""
    different = total = 0
    for choices in choices_of_ranks:
        for key, (rows, chosen) in choices.items():
            theirs = expected[key][1][rows]
            different += int(torch.logical_not((chosen[:, :, None] == theirs[:, None, :]).any(-1)).sum())
            total += chosen.numel()
    return different, total
