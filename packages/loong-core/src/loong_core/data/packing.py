"""Which samples share a sequence: best-fit-decreasing over a bounded look-ahead.

Samples of unlike lengths are laid end to end in sequences of at most `capacity` tokens. A window of samples is sorted
by length and each is put where it leaves the least room; the well-filled sequences of the window are given out and the
samples of the others wait for the next window, so that a stream of any length is packed in bounded memory. What comes
out depends on the order of the samples alone, not on who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

LongSamples = Literal["truncate", "split", "drop", "stop"]
"""What becomes of a sample longer than a sequence: its beginning is kept, it is cut into several, it is left out, or
the run stops."""

FULL_ENOUGH = 0.995
"""A sequence filled to this share is given out at once; emptier ones may wait for better company."""


@dataclass(frozen=True)
class SecondBudget:
    """What a sequence holds only so much of, beside tokens, such as patches of images.

    Attributes:
        sizes: of each sample.
        capacity: of a sequence.
    """

    sizes: Sequence[int]
    capacity: int


def best_fit(lengths: Sequence[int], capacity: int, second: SecondBudget | None = None) -> list[list[int]]:
    """Pack by best-fit-decreasing: the longest first, each into the fullest sequence that still holds it.

    Best-fit-decreasing needs at most 11/9 of the best possible number of sequences, plus 4 (D. S. Johnson, 1973). The
    smallest sufficient room is found as the lowest set bit of an integer that has bit `r` set while a sequence with
    room `r` exists, which costs `capacity / 64` machine words whatever the number of open sequences.

    Args:
        lengths: tokens of each sample.
        capacity: tokens of a sequence.
        second: another budget that sequences keep to; a sample then goes to the fullest sequence with room in both.

    Returns:
        The indices of the samples of each sequence, rising within a sequence.

    Raises:
        ValueError: a sample is empty or does not fit.
    """
    by_room: dict[int, list[list[int]]] = {}
    rooms = 0
    sequences: list[list[int]] = []
    used: dict[int, int] = {}  # of the second budget, by the identity of the sequence
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        if not 0 < length <= capacity:
            raise ValueError(f"sample {index} has {length} tokens, a sequence holds 1 to {capacity}")
        size = second.sizes[index] if second is not None else 0
        if second is not None and size > second.capacity:
            raise ValueError(f"sample {index} takes {size} of a second budget of {second.capacity}")
        room, sequence = capacity, None
        fitting = rooms >> length << length
        while fitting and sequence is None:
            room = (fitting & -fitting).bit_length() - 1
            fitting &= fitting - 1
            alike = by_room[room]
            for place in range(len(alike) - 1, -1, -1):
                if second is None or used[id(alike[place])] + size <= second.capacity:
                    sequence = alike.pop(place)
                    break
            if not alike:
                rooms ^= 1 << room
        if sequence is None:
            room, sequence = capacity, []
            sequences.append(sequence)
        sequence.append(index)
        if second is not None:
            used[id(sequence)] = used.get(id(sequence), 0) + size
        left = room - length
        if left:
            by_room.setdefault(left, []).append(sequence)
            rooms |= 1 << left
    for sequence in sequences:
        sequence.sort()
    return sequences


def pack_window[T](
    waiting: Sequence[T],
    fresh: Sequence[T],
    length: Callable[[T], int],
    capacity: int,
    *,
    last: bool,
    size: Callable[[T], int] | None = None,
    second_capacity: int = 0,
) -> tuple[list[list[T]], list[T]]:
    """Pack one window of a stream.

    Every sequence filled to `FULL_ENOUGH` is given out, and at least the fuller half of all, so that no more samples
    wait than a window holds.

    Args:
        waiting: samples left over from the window before.
        fresh: the window's own samples.
        length: tokens of a sample.
        capacity: tokens of a sequence.
        last: whether the stream ends here; nothing then waits.
        size: what a sample takes of a second budget; None: there is none.
        second_capacity: what a sequence holds of it.

    Returns:
        The sequences given out, and the samples that wait, in order of arrival.
    """
    samples = [*waiting, *fresh]
    lengths = [length(sample) for sample in samples]
    sizes = None if size is None else SecondBudget([size(sample) for sample in samples], second_capacity)
    sequences = best_fit(lengths, capacity, sizes)
    if last:
        return [[samples[index] for index in sequence] for sequence in sequences], []
    filled = [sum(lengths[index] for index in sequence) for sequence in sequences]
    fullest_first = sorted(range(len(sequences)), key=lambda number: -filled[number])
    at_least = (len(sequences) + 1) // 2
    enough = sum(tokens >= FULL_ENOUGH * capacity for tokens in filled)
    given = sorted(fullest_first[: max(at_least, enough)])
    kept = sorted(index for number in fullest_first[max(at_least, enough) :] for index in sequences[number])
    return [[samples[index] for index in sequences[number]] for number in given], [samples[index] for index in kept]


@dataclass
class PackingCount:
    """What packing did to the samples, for the console and the metrics.

    Attributes:
        sequences: sequences given out.
        samples: samples in them (the parts of a split sample count each).
        tokens: tokens in them.
        capacity: tokens they could have held.
        truncated, split, dropped: samples longer than a sequence, by what became of them.
        lost_tokens: tokens that truncation cut off or dropping left out.
    """

    sequences: int = 0
    samples: int = 0
    tokens: int = 0
    capacity: int = 0
    truncated: int = 0
    split: int = 0
    dropped: int = 0
    lost_tokens: int = 0

    @property
    def efficiency(self) -> float:
        """Share of the sequences' places that hold a token; 1 where there is no sequence yet."""
        return self.tokens / self.capacity if self.capacity else 1.0

    def add(self, lengths: Sequence[int], capacity: int) -> None:
        """Count one sequence of samples of these lengths."""
        self.sequences += 1
        self.samples += len(lengths)
        self.tokens += sum(lengths)
        self.capacity += capacity

    def __str__(self) -> str:
        """One line for people."""
        text = (
            f"{self.samples:,} samples in {self.sequences:,} sequences, "
            f"{100 * self.efficiency:.2f} % of {self.capacity:,} places used"
        )
        for count, what in ((self.truncated, "cut short"), (self.split, "split"), (self.dropped, "left out")):
            if count:
                text += f"; {count:,} too long and {what}"
        return text + (f" ({self.lost_tokens:,} tokens lost)" if self.lost_tokens else "")


def places(length: int, capacity: int, policy: LongSamples) -> list[tuple[int, int]]:
    """The stretches `[start, stop)` of a sample of `length` tokens that are packed, each at most `capacity` long."""
    if length <= capacity:
        return [(0, length)]
    if policy == "truncate":
        return [(0, capacity)]
    if policy == "split":
        return [(start, min(start + capacity, length)) for start in range(0, length, capacity)]
    return []
