"""Judging a model by held-out conversations, with their images or with others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from loong_vlm.data.arrangement import arrange
from loong_vlm.data.batch import Pictures
from loong_vlm.data.corpus import VisionSettings, VisionSource, open_vision_corpus
from loong_vlm.inference import Altered, Judged, OpenedVisionModel, judge

Shown = Literal["own", "blank", "swapped"]


def blanked(pictures: Pictures) -> Pictures:
    """Images of one grey."""
    return Pictures(torch.zeros_like(pictures.patches), pictures.grid_thw, pictures.kinds, pictures.seconds)


def swapped(pictures: Pictures) -> Pictures:
    """Each image in the place of another of its size, if there is another.

    The images of one size change places along one random cycle, the same for the same number of images, so that neither
    an image stays nor do the images of one question stay together.
    """
    grids = [tuple(grid) for grid in pictures.grid_thw.tolist()]
    order = list(range(len(grids)))
    generator = torch.Generator().manual_seed(len(grids))
    for grid in dict.fromkeys(grids):
        alike = [number for number, own in enumerate(grids) if own == grid]
        cycle = [alike[place] for place in torch.randperm(len(alike), generator=generator).tolist()]
        for number, other in zip(cycle, cycle[1:] + cycle[:1]):
            order[number] = other
    return Pictures(pictures.select(order).patches, pictures.grid_thw, pictures.kinds, pictures.seconds)


ALTERED: dict[Shown, Altered | None] = {"own": None, "blank": blanked, "swapped": swapped}
"""What is shown in the place of the images, by name."""


def judge_files(
    model: OpenedVisionModel,
    data: Sequence[str],
    *,
    sequence_length: int = 2048,
    pictures: Shown = "own",
    micro_batch_size: int = 8,
) -> Judged:
    """Loss and exact answers on every conversation of some files.

    Args:
        model: what is judged.
        data: files, folders or globs.
        sequence_length: tokens of a sequence; of longer conversations the beginning counts.
        pictures: which images are shown.
        micro_batch_size: sequences at once.

    Raises:
        UserError: what is wrong with the data.
    """
    sources = tuple(VisionSource(path) for path in data)
    with TemporaryDirectory() as folder:
        settings = VisionSettings(sources, Path(folder), sequence_length, validation=sources)
        corpus = open_vision_corpus(settings, model.encoder, partial(arrange, parts=model.source.parts))
        try:
            held_out = corpus.held_out()
            assert held_out is not None
            batches: Any = held_out.microbatches(micro_batch_size=micro_batch_size)
            return judge(model, batches, ALTERED[pictures])
        finally:
            corpus.close()
