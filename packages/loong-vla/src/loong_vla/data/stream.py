"""The training data as one endless line of samples, the same whatever the number of ranks, and microbatches of it.

All pictures of a step are asked for at once, so that each video is read front to back. A sample's noise, time and
changes of pictures are drawn from its number in the line. The only state is how many samples were taken.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

from loong_core.data.blend import Blend
from loong_core.data.shuffle import permutation
from loong_core.errors import UserError
from loong_vla.data.samples import RobotSample, SampleSource
from loong_vla.data.video import CorruptFrame

Collate = Callable[[Sequence[RobotSample]], Any]
"""A microbatch of samples."""


class SkipReport(Protocol):
    """Is told of samples that are left out."""

    def __call__(self, error: CorruptFrame, count: int) -> None:
        """`count` samples were left out so far, this one because of `error`."""
        ...


class RobotStream:
    """One data rank's microbatches, step by step.

    Args:
        sources: where samples come from.
        weights: their proportions; None: each its size, so that an epoch is every sample once.
        collate: makes a microbatch.
        global_batch_size: samples a step, over all data ranks.
        micro_batch_size: samples a microbatch.
        seed: decides the order.
        data_rank, data_size: which share of each step.
        corrupt: whether a picture that cannot be read stops the run, or the next sample takes its place.
        skipped: is told of those.

    Raises:
        UserError: sizes that do not divide.
    """

    def __init__(
        self,
        sources: Sequence[SampleSource],
        weights: Sequence[float] | None,
        collate: Collate,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        seed: int,
        data_rank: int = 0,
        data_size: int = 1,
        corrupt: Literal["stop", "skip"] = "stop",
        skipped: SkipReport | None = None,
    ) -> None:
        if global_batch_size % (micro_batch_size * data_size):
            raise UserError(
                f"train.global_batch_size {global_batch_size} is not a multiple of train.micro_batch_size "
                f"{micro_batch_size} x {data_size} data ranks"
            )
        self.sources = list(sources)
        self.global_batch_size = global_batch_size
        self.micro_batch_size = micro_batch_size
        self.consumed_samples = 0
        self.left_out = 0
        self._blend = Blend(weights or [len(source) for source in sources])
        self._collate, self._seed = collate, seed
        self._rank, self._size = data_rank, data_size
        self._corrupt, self._skipped = corrupt, skipped
        self._orders: dict[int, tuple[int, Any]] = {}

    @property
    def samples_per_epoch(self) -> int:
        """Samples of all sources."""
        return sum(len(source) for source in self.sources)

    def steps_for(self, epochs: float) -> int:
        """Steps that use `epochs` epochs, at least one."""
        return max(1, int(epochs * self.samples_per_epoch) // self.global_batch_size)

    def next_step(self) -> list[Any]:
        """This rank's microbatches of the next step.

        Raises:
            CorruptFrame: a picture cannot be read, and `corrupt` is `stop`.
            UserError: too many cannot be read.
        """
        first = self.consumed_samples
        stride = self.micro_batch_size * self._size
        starts = range(first + self._rank * self.micro_batch_size, first + self.global_batch_size, stride)
        numbers = [number for start in starts for number in range(start, start + self.micro_batch_size)]
        samples = self._read(numbers)
        self.consumed_samples = first + self.global_batch_size
        size = self.micro_batch_size
        return [self._collate(samples[low : low + size]) for low in range(0, len(samples), size)]

    def _read(self, numbers: Sequence[int]) -> list[RobotSample]:
        """The samples with these numbers in the line."""
        wanted: list[list[tuple[int, int, int]]] = [[] for _ in self.sources]
        for place, number in enumerate(numbers):
            source, draw = self._blend.source_of(number)
            wanted[source].append((self._frame(source, draw), number, place))
        found: list[RobotSample | None] = [None] * len(numbers)
        for source, asked in enumerate(wanted):
            if not asked:
                continue
            read = self.sources[source].read([(frame, number) for frame, number, _ in asked])
            for (frame, number, place), sample in zip(asked, read, strict=True):
                found[place] = self._instead(source, frame, number, sample)
        return [sample for sample in found if sample is not None]

    def _instead(self, source: int, frame: int, number: int, sample: RobotSample | CorruptFrame) -> RobotSample:
        """The sample, or the first after it in the dataset that can be read."""
        tries = 0
        while isinstance(sample, CorruptFrame):
            self.left_out += 1
            if self._corrupt == "stop":
                raise CorruptFrame(f"{sample}; set data.corrupt_frames=skip to leave such samples out")
            if self._skipped is not None:
                self._skipped(sample, self.left_out)
            tries += 1
            if tries > len(self.sources[source]):
                raise UserError(f"{self.sources[source].recordings.root}: not one picture can be read; {sample}")
            (sample,) = self.sources[source].read([((frame + tries) % len(self.sources[source]), number)])
        return sample

    def _frame(self, source: int, draw: int) -> int:
        """Which of a source's samples is its `draw`-th."""
        epoch, place = divmod(draw, len(self.sources[source]))
        if self._orders.get(source, (-1, None))[0] != epoch:
            self._orders[source] = (epoch, permutation(len(self.sources[source]), self._seed, source, epoch))
        return int(self._orders[source][1][place])

    @property
    def identity(self) -> str:
        """Digest of everything that decides the samples' order."""
        parts: list[Any] = [self._blend.shares, self._seed]
        parts += [[each.recordings.digest, each.offsets.tolist(), each.frames.tolist()] for each in self.sources]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()

    def state_dict(self) -> dict[str, Any]:
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
                "datasets, weights, horizon, held-out episodes or seed have changed; restore them, or start in a new "
                "output folder from the saved weights"
            )
        self.consumed_samples = int(state["consumed_samples"])


def held_out_steps(
    sources: Sequence[SampleSource],
    collate: Collate,
    *,
    global_batch_size: int,
    micro_batch_size: int,
    data_rank: int,
    data_size: int,
    steps: int | None,
) -> Iterator[list[Any]]:
    """One pass over the held-out samples in order, in whole steps, equally many on every rank.

    What is over at the end is left out, so there have to be at least `global_batch_size` samples.
    """
    places = [(source, frame) for source, each in enumerate(sources) for frame in range(len(each))]
    whole = len(places) // global_batch_size
    for step in range(whole if steps is None else min(whole, steps)):
        first = step * global_batch_size
        stride = micro_batch_size * data_size
        microbatches = []
        for start in range(first + data_rank * micro_batch_size, first + global_batch_size, stride):
            samples = []
            for number in range(start, start + micro_batch_size):
                source, frame = places[number]
                (sample,) = sources[source].read([(frame, number)])
                if isinstance(sample, CorruptFrame):
                    raise sample
                samples.append(sample)
            microbatches.append(collate(samples))
        yield microbatches
