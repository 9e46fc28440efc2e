"""What is done to the blocks of a plan: which of their parts are recomputed, and which use the host's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from loong_core.nn.decoder_config import BlockConfig
from loong_core.nn.name_patterns import matches
from loong_core.nn.parts import Parts
from loong_core.plan.activations import ATTENTION, BLOCK, EXPERTS, FEED_FORWARD, Held
from loong_core.plan.workload import Workload

_OUTERMOST_FIRST = (BLOCK, ATTENTION, FEED_FORWARD, EXPERTS)


@dataclass(frozen=True)
class Treatment:
    """What is done to a block.

    Attributes:
        recomputed: its parts of which the input alone is kept; none lies within another.
        offloaded: whether the block keeps on the host what it keeps.
    """

    recomputed: tuple[str, ...] = ()
    offloaded: bool = False

    def kept(self, held: Held) -> float:
        """Bytes that a block keeps from forward to backward, on the device or on the host."""
        return held.saved - sum(held.parts.get(part, 0.0) for part in self.recomputed)

    def repeated(self, held: Held) -> float:
        """The most bytes that a repeated forward brings back at once."""
        return max((held.parts.get(part, 0.0) for part in self.recomputed), default=0.0)


PLAIN = Treatment()

TreatedBlocks = list[tuple[BlockConfig, Treatment, int]]
"""Kinds of blocks, what is done to them, and how many of each."""


def treated_blocks(work: Workload, numbers: Sequence[int]) -> TreatedBlocks:
    """The blocks of a pipeline rank.

    Parts that a plan does not know by name (smaller ones, the head) are planned as if nothing were done to them, which
    is never less memory; so are parts of blocks that are to be offloaded by themselves.

    Args:
        work: the run.
        numbers: of its blocks, in the order of the model.
    """
    blocks = work.model.blocks
    if work.recompute.nothing and work.offload.nothing:
        return [(block, PLAIN, count) for block, count in Counter(blocks[number] for number in numbers).items()]
    found = Counter(
        (
            blocks[number],
            Treatment(_parts(work.recompute, number, place), BLOCK in _parts(work.offload, number, place)),
        )
        for place, number in enumerate(numbers)
    )
    return [(block, treatment, count) for (block, treatment), count in found.items()]


def names_layers(work: Workload) -> bool:
    """Whether what is done depends on a block's number in the model, so that like pipeline ranks may differ."""
    return any(
        any(character.isdigit() or character in "*?[" for character in pattern)
        for pattern in (*work.recompute.modules, *work.offload.modules)
    )


def _parts(parts: Parts, number: int, place: int) -> tuple[str, ...]:
    """The parts of a block that are chosen; `place`: how many blocks of its pipeline rank come before."""
    if parts.blocks is None or place < parts.blocks:
        return (BLOCK,)
    chosen: list[str] = []
    for part in _OUTERMOST_FIRST:
        name = f"layers.{number}{part}"
        if any(matches(name, pattern) for pattern in parts.modules) and not any(
            part.startswith(f"{outer}.") for outer in chosen
        ):
            chosen.append(part)
    return tuple(chosen)
