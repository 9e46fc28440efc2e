"""Filling tensors with boxes of a Hugging Face folder, as fast as its disk and the host's memory let it.

Boxes are taken in runs of rows. A few threads read ahead, in large reads and straight into the tensors they are for
where nothing has to be converted, and look for numbers that are not finite while the bytes are still in the cache.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from loong_core.checkpoint.hf_reader import HFFolder, all_finite
from loong_core.checkpoint.pieces import Piece

RUN_BYTES = 32 << 20
"""Of a run of rows: large enough for a disk, small enough that those under way need little memory."""
THREADS = 4
"""That read; more gain nothing where the files are in memory already."""


def fill(folder: HFFolder, wanted: Iterable[tuple[Piece, Tensor]]) -> list[Piece]:
    """Read boxes into tensors, which may be of another dtype, on another device, and not contiguous.

    Host memory holds at most `2 * THREADS` runs besides the tensors themselves.

    Args:
        folder: where the boxes are.
        wanted: boxes, each with a tensor of its sizes.

    Returns:
        The boxes that have NaN or Inf among their numbers.
    """
    faulty: dict[Piece, None] = {}
    under_way: deque[tuple[Piece, Tensor, Future[tuple[Tensor, bool]]]] = deque()

    def take() -> None:
        piece, out, future = under_way.popleft()
        values, finite = future.result()
        if values is not out:
            out.copy_(values)
        if not finite:
            faulty[piece] = None

    with ThreadPoolExecutor(THREADS, thread_name_prefix="hf-read") as threads:
        for piece, out in wanted:
            for run, part in _runs(piece, out, folder.tensors[piece.name].element_size):
                if len(under_way) == 2 * THREADS:
                    take()
                under_way.append((piece, part, threads.submit(_read, folder, run, part)))
        while under_way:
            take()
    return list(faulty)


@torch.no_grad()
def _read(folder: HFFolder, piece: Piece, out: Tensor) -> tuple[Tensor, bool]:
    """In a thread: values in host memory, `out` itself if it is there, and whether they are all finite."""
    stored = folder.tensors[piece.name].torch_dtype
    on_host = out.device.type == "cpu"
    straight = on_host and out.dtype == stored and out.is_contiguous()
    values = out if straight else torch.empty(piece.sizes, dtype=stored)
    folder.read_into(piece, values)
    finite = all_finite(values)
    if on_host and not straight:
        values = out.copy_(values)
    return (out if on_host else values), finite


def _runs(piece: Piece, out: Tensor, element_size: int) -> Iterator[tuple[Piece, Tensor]]:
    """A box in runs of rows of about `RUN_BYTES`, along the first dimension that has several."""
    dim = next((dim for dim, size in enumerate(piece.sizes) if size != 1), None)
    if dim is None or 0 in piece.sizes:
        yield piece, out
        return
    row = prod(piece.sizes[dim + 1 :]) * element_size
    rows = max(1, RUN_BYTES // row)
    for start in range(0, piece.sizes[dim], rows):
        count = min(rows, piece.sizes[dim] - start)
        yield (
            replace(
                piece,
                offsets=(*piece.offsets[:dim], piece.offsets[dim] + start, *piece.offsets[dim + 1 :]),
                sizes=(*piece.sizes[:dim], count, *piece.sizes[dim + 1 :]),
            ),
            out.narrow(dim, start, count),
        )
