"""Recording which experts were chosen, to tell whether two layouts or two runs decided alike.

A router's choice is a discontinuity: where two scores are nearly equal, another order of rounding flips it, and results
then differ by more than rounding. Comparisons therefore count the choices that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from loong_core.data.batch import PackedBatch
from loong_core.data.context_cut import own_shares
from loong_core.nn.moe.router import Router, Routing
from loong_core.nn.recompute import repeating
from loong_core.parallel.collectives import gather_tokens
from loong_core.parallel.context import ParallelContext

Choices = dict[str, list[Tensor]]
"""By the router's name: for each forward its tokens' experts, `[tokens, top_k]` int64 on the host, sorted."""

Rows = list[tuple[int, Tensor]]
"""Of each microbatch of a rank: its number in the step, and which of its rows the rank has."""

ChoicesOfRows = dict[tuple[int, str], tuple[Tensor, Tensor]]
"""By microbatch and router: rows of the microbatch, and the experts chosen for them, `[rows, top_k]` sorted."""


@contextmanager
def recorded_choices(modules: Iterable[nn.Module], context: ParallelContext) -> Iterator[Choices]:
    """Record every choice of the modules' routers within the block, those of all tensor ranks on each of them.

    Each forward of a layer adds an entry, but not one that is repeated in backward. Tokens that only fill up the last
    tensor rank's run are at the end of an entry.
    """
    choices: Choices = {}
    handles = []

    def record(name: str) -> Any:
        def hook(router: nn.Module, arguments: tuple[Any, ...], routing: Routing) -> None:
            if repeating():
                return
            local = routing.experts.detach()
            together = gather_tokens(local, context.tensor, local.shape[0] * context.tensor.size)
            choices.setdefault(name, []).append(together.sort(-1).values.cpu())

        return hook

    for module in modules:
        for name, child in module.named_modules():
            if isinstance(child, Router):
                handles.append(child.register_forward_hook(record(name)))
    try:
        yield choices
    finally:
        for handle in handles:
            handle.remove()


def own_rows(microbatches: Sequence[Any], context: ParallelContext) -> Rows:
    """Of this data rank's microbatches of a step the rows that this context rank has.

    Args:
        microbatches: `PackedBatch`, or what has one as its `text`.
        context: the decoder's.
    """
    texts: list[PackedBatch] = [batch if isinstance(batch, PackedBatch) else batch.text for batch in microbatches]
    numbered = [replace(text, tokens=torch.arange(text.tokens.shape[0])) for text in texts]
    numbers = range(context.data.rank, len(microbatches) * context.data.size, context.data.size)
    return list(zip(numbers, [part.tokens.cpu() for part in own_shares(numbered, context)], strict=True))


def by_microbatch(recorded: Choices, rows: Rows) -> ChoicesOfRows:
    """What was recorded forward by forward as the choices of a step's microbatches."""
    found: ChoicesOfRows = {}
    for name, forwards in recorded.items():
        for (microbatch, held), chosen in zip(rows, forwards, strict=True):
            found[microbatch, name] = (held, chosen[: held.shape[0]])
    return found


def differing_choices(ours: Mapping[str, list[Tensor]], theirs: Mapping[str, list[Tensor]]) -> int:
    """How many of the choices of experts in `ours` are not in `theirs`; of tokens that both have.

    Raises:
        ValueError: if the two are not of the same layers and forwards.
    """
    if {name: len(each) for name, each in ours.items()} != {name: len(each) for name, each in theirs.items()}:
        raise ValueError("the choices compared are of different layers, or of different numbers of forwards")
    different = 0
    for name, forwards in ours.items():
        for mine, other in zip(forwards, theirs[name]):
            tokens = min(mine.shape[0], other.shape[0])
            different += count_differing(mine[:tokens], other[:tokens])
    return different


def count_differing(ours: Tensor, theirs: Tensor) -> int:
    """How many experts chosen in `ours`, `[tokens, top_k]`, are not among those of `theirs` for the same token."""
    found = (ours[:, :, None] == theirs[:, None, :]).any(-1)
    return int(torch.logical_not(found).sum())
