"""Recording which experts were chosen, to tell whether two layouts or two runs decided alike.

A router's choice is a discontinuity: where two scores are nearly equal, another order of rounding flips it, and results
then differ by more than rounding. Comparisons therefore count the choices that differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from loong_core.nn.moe.router import Router, Routing
from loong_core.nn.recompute import repeating
from loong_core.parallel.collectives import gather_tokens
from loong_core.parallel.context import ParallelContext

Choices = dict[str, list[Tensor]]
"""By the router's name: for each forward its tokens' experts, `[tokens, top_k]` int64 on the host, sorted."""


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
            found = (mine[:tokens, :, None] == other[:tokens, None, :]).any(-1)
            different += int(torch.logical_not(found).sum())
    return different
