"""How many choices of experts, by step and microbatch, differ from one rank's, whatever ranks the tokens were on."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from loong_core.nn.moe.choices import count_differing

Choices = dict[tuple[int, int, str], tuple[Tensor, Tensor]]
"""By step, microbatch and router: rows of the microbatch, and the experts chosen for them, `[rows, top_k]` sorted."""


def differing(choices_of_ranks: Iterable[Choices], expected: Choices) -> tuple[int, int]:
    """How many choices of experts differ from those of one rank, of how many."""
    different = total = 0
    for choices in choices_of_ranks:
        for key, (rows, chosen) in choices.items():
            different += count_differing(chosen, expected[key][1][rows])
            total += chosen.numel()
    return different, total
