"""Rows as a microbatch: packed tokens, packed patches, and the places where features go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.data.sequences import Sample, pack
from loong_vlm.data.batch import Kind, Pictures, VisionBatch
from loong_vlm.data.loading import MediaLoader
from loong_vlm.data.samples import VisionRow

Arrange = Callable[[PackedBatch, Pictures], VisionBatch]
"""What makes a batch that a model takes: `loong_vlm.data.arrangement.arrange` with the model's parts."""


class Collator:
    """Makes microbatches of rows.

    Args:
        loader: loads what they show.
        arrange: finds where features go and how tokens are numbered.
    """

    def __init__(self, loader: MediaLoader, arrange: Arrange) -> None:
        self.loader = loader
        self._arrange = arrange

    def __call__(self, rows: Sequence[Sample]) -> VisionBatch:
        """One microbatch.

        Raises:
            UserError: what a row shows cannot be loaded.
        """
        return self.batches([rows])[0]

    def batches(self, microbatches: Sequence[Sequence[Sample]]) -> list[VisionBatch]:
        """Microbatches whose media are all loaded at the same time.

        Raises:
            UserError: what a row shows cannot be loaded.
        """
        loads = [[self._begin(row) for row in rows] for rows in microbatches]
        return [self._assemble(rows, own) for rows, own in zip(microbatches, loads, strict=True)]

    def _begin(self, row: Sample) -> list[Future[Tensor | None]]:
        return self.loader.submit([shown.medium for shown in row.shown]) if isinstance(row, VisionRow) else []

    def _assemble(self, rows: Sequence[Sample], loads: Sequence[Sequence[Future[Tensor | None]]]) -> VisionBatch:
        patches: list[Tensor] = []
        grids: list[tuple[int, int, int]] = []
        kinds: list[Kind] = []
        seconds: list[float] = []
        whole: list[Sample] = []
        for row, futures in zip(rows, loads, strict=True):
            labels = row.labels
            for shown, future in zip(row.shown if isinstance(row, VisionRow) else (), futures, strict=True):
                loaded = future.result()
                if loaded is None:
                    labels = labels.copy() if labels is row.labels else labels
                    labels[shown.start : shown.stop] = IGNORED_LABEL
                patches.append(self.loader.blank(shown.medium) if loaded is None else loaded)
                grids.append(shown.medium.grid)
                kinds.append(shown.medium.medium.kind)
                seconds.append(shown.medium.seconds)
            whole.append(Sample(row.tokens, labels, row.lengths))
        pictures = Pictures.none(self.loader.processor.patch_dim)
        if patches:
            grid_thw = torch.tensor(grids, dtype=torch.int64)
            pictures = Pictures(torch.cat(patches), grid_thw, tuple(kinds), tuple(seconds))
        return self._arrange(pack(whole), pictures)


def boundaries(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """First place and the place after the last of parts of these lengths, end to end."""
    return list(pairwise(np.concatenate([[0], np.cumsum(lengths)]).tolist()))
