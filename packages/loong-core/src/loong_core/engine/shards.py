"""From a flat range of a parameter to boxes of canonical tensors, and back.

Engines shard a parameter's state by cutting its flattened memory into ranges, whatever its shape. A range of a
row-major array is at most `2 * ndim - 1` boxes (the rest of a row, whole rows, the beginning of a row, in each
dimension), and a box of a parameter is a box of each Hugging Face tensor that lies in it. So a rank names what it
holds in canonical terms by arithmetic alone: nothing is gathered to be saved, and nothing more than it holds is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from torch import Tensor

from loong_core.checkpoint.pieces import Piece
from loong_core.checkpoint.weight_map import AS_OURS, Form, Placement


@dataclass(frozen=True)
class Fragment:
    """A canonical box, and where its elements are in a flat range of a parameter.

    Attributes:
        piece: the box.
        start, stop: a run of the flat range, counted from the range's beginning, that holds it.
        shape: shape to view the run in.
        inside: index of the box's elements in that view (all of it, but for padding and neighbours).
        form: how the box lies in the canonical tensor.
    """

    piece: Piece
    start: int
    stop: int
    shape: tuple[int, ...]
    inside: tuple[slice, ...]
    form: Form = AS_OURS

    def view(self, flat: Tensor) -> Tensor:
        """The box's elements as a view of the flat range, `[stop - start of the range]`."""
        return self.form.view(flat[self.start : self.stop].view(self.shape)[self.inside])


def flat_boxes(shape: tuple[int, ...], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Boxes (first indices, extents) that make up elements `start` to `stop` of a row-major array, in order."""
    if start >= stop:
        return
    if len(shape) == 0:
        yield (), ()
        return
    if len(shape) == 1:
        yield (start,), (stop - start,)
        return
    row = prod(shape[1:])
    first, last = start // row, (stop - 1) // row
    if first == last and stop - start < row:
        for offsets, sizes in flat_boxes(shape[1:], start - first * row, stop - first * row):
            yield (first, *offsets), (1, *sizes)
        return
    whole_from, whole_to = -(-start // row), stop // row
    if start % row:
        yield from flat_boxes(shape, start, whole_from * row)
    if whole_from < whole_to:
        yield (whole_from, *([0] * (len(shape) - 1))), (whole_to - whole_from, *shape[1:])
    if stop % row:
        yield from flat_boxes(shape, whole_to * row, stop)


def fragments(placement: Placement, start: int, stop: int) -> Iterator[Fragment]:
    """What elements `start` to `stop` of a rank's flattened parameter hold, in order; padding is left out."""
    shape = placement.rows_shape
    for offsets, sizes in flat_boxes(shape, start, stop):
        begin = sum(offset * prod(shape[dim + 1 :]) for dim, offset in enumerate(offsets)) - start
        end = begin + prod(sizes)
        row = 0
        for piece, room, form in zip(placement.pieces, placement.rooms, placement.forms, strict=True):
            held = form.ours(piece.sizes)
            first = (row, *([0] * (len(held) - 1)))  # of the room, in rows of the parameter
            low = [max(offset, begins) for offset, begins in zip(offsets, first, strict=True)]
            high = [
                min(offset + size, begins + extent)
                for offset, size, begins, extent in zip(offsets, sizes, first, held, strict=True)
            ]
            if all(a < b for a, b in zip(low, high, strict=True)):
                within = form.stored([a - begins for a, begins in zip(low, first, strict=True)], 0)
                yield Fragment(
                    piece=Piece(
                        piece.name,
                        piece.global_shape,
                        tuple(base + inner for base, inner in zip(piece.offsets, within, strict=True)),
                        form.stored([b - a for a, b in zip(low, high, strict=True)], 1),
                    ),
                    start=begin,
                    stop=end,
                    shape=sizes,
                    inside=tuple(slice(a - o, b - o) for a, b, o in zip(low, high, offsets, strict=True)),
                    form=form,
                )
            row += room[0]
