"""The training data as an endless line of packed samples with images, balanced over data ranks if asked for.

The line, and so every global batch, is that of `loong_core.data.stream`: it depends neither on the number of data ranks
nor on balancing, which only deals a global batch out otherwise. So a run resumes exactly on another number of ranks.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from loong_core.data.blend_schedule import ScheduledBlend
from loong_core.data.packed_samples import Stretch, lay_out
from loong_core.data.stream import Stream
from loong_vlm.balance.balancer import Balancer
from loong_vlm.balance.plan import Room
from loong_vlm.data.batch import VisionBatch
from loong_vlm.data.collation import Collator, boundaries
from loong_vlm.data.samples import Shown, VisionRow, VisionSamples

Placement = tuple[int, Stretch]
"""Number of a source, and a stretch of one of its samples."""


class VisionStream(Stream):
    """This data rank's microbatches with their images, step by step.

    Args:
        sources: where samples come from.
        shares: proportions of the sources; None: each the share of its size.
        collator: makes microbatches of rows.
        balancer: deals global batches out; None: in turn, as they come.
        global_batch_size: sequences a step, over all data ranks.
        micro_batch_size: sequences a microbatch.
        data_rank: which share of each step.
        data_size: number of shares.
        vocab_size: rows of the model's embedding.

    Raises:
        UserError: sizes that do not divide, or fewer sequences than a step needs.
    """

    def __init__(
        self,
        sources: Sequence[VisionSamples],
        shares: Sequence[float] | ScheduledBlend | None,
        collator: Collator,
        balancer: Balancer | None = None,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        data_rank: int = 0,
        data_size: int = 1,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__(
            sources,
            shares,
            global_batch_size=global_batch_size,
            micro_batch_size=micro_batch_size,
            data_rank=data_rank,
            data_size=data_size,
            vocab_size=vocab_size,
        )
        self.vision_sources = list(sources)
        self.balancer = balancer
        self._collator = collator
        self._waiting: deque[dict[str, Any]] = deque()

    def next_step(self) -> list[VisionBatch]:  # type: ignore[override] - batches of another kind
        """This rank's microbatches of the next step.

        Raises:
            UserError: an image cannot be loaded, or the data hold an id that the model's embedding does not have.
        """
        rows = [self.row(placements) for placements in self.deal()]
        step = self._collator.batches(list(itertools.batched(rows, self.micro_batch_size)))
        self.consumed_samples += self.global_batch_size
        return step

    def deal(self) -> list[list[Placement]]:
        """What each of this rank's sequences of the next step is made of; nothing is loaded."""
        sequences = [self._sequence(self.consumed_samples + place) for place in range(self.global_batch_size)]
        if self.balancer is None or self._size == 1:
            stride = self.micro_batch_size * self._size
            own = range(self._rank * self.micro_batch_size, self.global_batch_size, stride)
            return [sequences[first + place] for first in own for place in range(self.micro_batch_size)]
        placements = [placement for sequence in sequences for placement in sequence]
        items = [self.vision_sources[source].item(stretch) for source, stretch in placements]
        numbered = iter(range(len(placements)))
        numbers = [[next(numbered) for _ in sequence] for sequence in sequences]
        first = self.vision_sources[0]
        room = Room(first.sequence_length, first.second_capacity)
        plan = self.balancer.plan(items, numbers, self._size, room, self.micro_batch_size, move_samples=first.packing)
        return [[placements[number] for number in sequence] for sequence in plan.ranks[self._rank]]

    def _sequence(self, number: int) -> list[Placement]:
        source, draw = self._blend.source_of(number)
        own = self.vision_sources[source]
        return [(source, stretch) for stretch in own.stretches(own.number(draw))]

    def row(self, placements: Sequence[Placement]) -> VisionRow:
        """One sequence of these stretches; several sources may share it."""
        first = self.vision_sources[0]
        row = vision_row([(self.vision_sources[source], stretch) for source, stretch in placements], first)
        self.check_ids(row, " or ".join(sorted({self.vision_sources[source].store.name for source, _ in placements})))
        return row

    def figures(self, row: dict[str, Any]) -> dict[str, Any]:
        """How uneven the step was before and after balancing; its time goes into the cost model. On all ranks."""
        return {} if self.balancer is None or self._size == 1 else self.balancer.finish_step(row)

    def state_dict(self) -> dict[str, Any]:
        """The position, and the measured costs."""
        state: dict[str, Any] = super().state_dict()
        return state if self.balancer is None else {**state, "costs": self.balancer.state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a checkpoint's position.

        Raises:
            UserError: the checkpoint was made with other data.
        """
        super().load_state_dict(state)
        if self.balancer is not None:
            self.balancer.restart(state.get("costs"))


def vision_row(placements: Sequence[tuple[VisionSamples, Stretch]], like: VisionSamples) -> VisionRow:
    """One sequence of stretches of samples, laid out as `like` lays out its own."""
    sample = lay_out(
        [own.marked(stretch) for own, stretch in placements],
        multiple=like.multiple,
        fill=like.sequence_length if like.packing else None,
    )
    shown = [
        Shown(medium, start, stop, f"{own.store.name}, sample {stretch[0]}")
        for (own, stretch), (start, stop) in zip(placements, boundaries(sample.lengths))
        for medium in own.media(stretch)
    ]
    tokens = np.ascontiguousarray(sample.tokens)
    return VisionRow(tokens, sample.labels, sample.lengths, tuple(shown))
