"""Cached samples as one endless line, of which every step takes the next `global_batch_size`.

The line is the same whatever the number of data ranks. With batches of one size, each epoch's samples are put together
with others of their size, as many as a microbatch holds, and those left over wait for another epoch. The only state is
how many samples were consumed.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from loong_core.data.shuffle import permutation
from loong_core.errors import UserError
from loong_dit.batch import DiffusionBatch
from loong_dit.data.assembly import Noising, assemble
from loong_dit.data.sample_source import SampleSource
from loong_dit.flow.draws import SampleDraws

Batching = Literal["packed", "sizes"]

_HELD_OUT = 1 << 40
"""Held-out samples draw from numbers that no training sample reaches."""


class LatentStream:
    """This data rank's microbatches, step by step.

    Args:
        cache: where samples are.
        samples: which of them are trained on.
        noising: how they become batches.
        batching: `packed` puts samples of any sizes into one microbatch, `sizes` of one size.
        global_batch_size: samples a step, over all data ranks.
        micro_batch_size: samples a microbatch.
        data_rank: which share of each step.
        data_size: number of shares.
        high_noise_share: of all noise levels, those of the first of two experts; each step trains one expert, drawn
            with this probability. None: there is one transformer.
        high_noising: how samples become batches of the first expert, where there are two.

    Raises:
        UserError: there are fewer samples than a step needs.
    """

    def __init__(
        self,
        cache: SampleSource,
        samples: Sequence[int],
        noising: Noising,
        *,
        batching: Batching,
        global_batch_size: int,
        micro_batch_size: int,
        data_rank: int = 0,
        data_size: int = 1,
        high_noise_share: float | None = None,
        high_noising: Noising | None = None,
    ) -> None:
        self.cache, self.samples, self.noising = cache, np.asarray(samples, dtype=np.int64), noising
        self.batching: Batching = batching
        self.global_batch_size, self.micro_batch_size = global_batch_size, micro_batch_size
        self.consumed_samples = 0
        self._rank, self._size = data_rank, data_size
        self._high_noise_share, self._high_noising = high_noise_share, high_noising
        self._order: tuple[int, NDArray[np.int64]] | None = None
        self._empty_text: Tensor | None = None
        self.samples_per_epoch = len(self._epoch_order(0)) if len(self.samples) else 0
        if self.samples_per_epoch < global_batch_size:
            raise UserError(
                f"data.cache: {self.samples_per_epoch} of the {len(self.samples)} samples to train on make whole "
                f"microbatches of {micro_batch_size}, fewer than train.global_batch_size {global_batch_size}; lower it "
                "or train.micro_batch_size, cache more, or set data.batching=packed"
            )

    def steps_for(self, epochs: float) -> int:
        """Steps that use `epochs` epochs, at least one."""
        return max(1, int(epochs * self.samples_per_epoch) // self.global_batch_size)

    def next_step(self) -> list[DiffusionBatch]:
        """This rank's microbatches of the next step."""
        first, noising, high = self.consumed_samples, self.noising, False
        if self._high_noise_share is not None:
            step = first // self.global_batch_size
            high = SampleDraws(noising.seed, step).uniform("expert") < self._high_noise_share
            noising = self._high_noising if high and self._high_noising is not None else noising
        stride = self.micro_batch_size * self._size
        starts = range(first + self._rank * self.micro_batch_size, first + self.global_batch_size, stride)
        if self._empty_text is None:
            self._empty_text = self.cache.empty_text()
        batches = []
        for start in starts:
            numbers = range(start, start + self.micro_batch_size)
            read = [(number, self.cache.read(self._sample(number))) for number in numbers]
            batches.append(assemble(read, self._empty_text, noising, high_noise=high))
        self.consumed_samples = first + self.global_batch_size
        return batches

    def _sample(self, number: int) -> int:
        """Which sample of the cache is the `number`-th of the line."""
        epoch, place = divmod(number, self.samples_per_epoch)
        return int(self._epoch_order(epoch)[place])

    def _epoch_order(self, epoch: int) -> NDArray[np.int64]:
        if self._order is None or self._order[0] != epoch:
            order = self.samples[permutation(len(self.samples), self.noising.seed, epoch)]
            self._order = (epoch, self._by_size(order) if self.batching == "sizes" else order)
        return self._order[1]

    def _by_size(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """The order with neighbours of one size brought together, a microbatch at a time, as each is full."""
        waiting: defaultdict[Any, list[int]] = defaultdict(list)
        together: list[int] = []
        for number in order.tolist():
            at = self.cache.samples[number]
            group = waiting[at.size, at.references]
            group.append(number)
            if len(group) == self.micro_batch_size:
                together += group
                group.clear()
        return np.asarray(together, dtype=np.int64)

    @property
    def identity(self) -> str:
        """Digest of everything that decides the samples, their order and their noise."""
        parts = [self.cache.manifest.hash, self.samples.tolist(), self.batching, repr(self.noising.levels)]
        parts += [self.noising.seed, self.noising.caption_dropout, self.noising.first_frame]
        parts += [self._high_noise_share, self.micro_batch_size if self.batching == "sizes" else 0]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def state_dict(self) -> dict[str, int | str]:
        """What a checkpoint keeps: the position, and what it is a position in."""
        return {"consumed_samples": self.consumed_samples, "identity": self.identity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a checkpoint's position.

        Raises:
            UserError: the checkpoint was made with other data.
        """
        if state["identity"] != self.identity:
            raise UserError(
                f"the training data are not those of the checkpoint ({state['consumed_samples']} samples consumed): "
                "the cache, its held-out share, flow or seed have changed; restore them, or name a new output folder"
            )
        self.consumed_samples = int(state["consumed_samples"])


def held_out_steps(
    cache: SampleSource,
    samples: Sequence[int],
    noising: Noising,
    *,
    global_batch_size: int,
    micro_batch_size: int,
    data_rank: int = 0,
    data_size: int = 1,
    steps: int | None = None,
    high_noising: Noising | None = None,
) -> Iterator[list[DiffusionBatch]]:
    """One pass over held-out samples, each with the noise that it has every time; equally many steps on every rank.

    Of two experts the samples of every other step are the first's. What does not fill a step at the end is left out,
    unless there is less than a step: then the samples are repeated.
    """
    empty = cache.empty_text()
    available = max(1, len(samples) // global_batch_size)
    for step in range(available if steps is None else min(steps, available)):
        high = high_noising is not None and step % 2 == 0
        chosen = high_noising if high and high_noising is not None else noising
        first = step * global_batch_size + data_rank * micro_batch_size
        starts = range(first, (step + 1) * global_batch_size, micro_batch_size * data_size)
        yield [
            assemble(
                [
                    (_HELD_OUT + place, cache.read(samples[place % len(samples)]))
                    for place in range(start, start + micro_batch_size)
                ],
                empty,
                chosen,
                high_noise=high,
            )
            for start in starts
        ]
