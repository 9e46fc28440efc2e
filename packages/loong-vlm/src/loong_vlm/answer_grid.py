"""A picture of pictures: questions, what they show, and what a model answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Answered:
    """A question that a model answered.

    Attributes:
        pictures: `[height, width]` uint8 each.
        question: what was asked.
        answer: what the model said.
        truth: what is right.
    """

    pictures: Sequence[NDArray[np.uint8]]
    question: str
    answer: str
    truth: str


def draw_answers(answered: Sequence[Answered], path: Path, *, columns: int = 6) -> None:
    """Draw a cell for each question; right answers in green, wrong ones in red with the right one behind."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = -(-len(answered) // columns)
    figure = Figure(figsize=(2.2 * columns, 2.0 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    cells = figure.subplots(rows, columns, squeeze=False).ravel()
    for cell in cells:
        cell.set_axis_off()
    for cell, each in zip(cells, answered, strict=False):
        gap = np.full((each.pictures[0].shape[0], 2), 255, np.uint8)
        parts = [part for picture in each.pictures for part in (picture, gap)][:-1]
        cell.imshow(np.concatenate(parts, axis=1), cmap="gray", vmin=0, vmax=255)
        right = each.answer == each.truth
        told = each.answer if right else f"{each.answer} (it is {each.truth})"
        cell.set_title(f"{each.question}\n{told}", fontsize=8, color="darkgreen" if right else "firebrick")
    figure.savefig(path, dpi=110)
