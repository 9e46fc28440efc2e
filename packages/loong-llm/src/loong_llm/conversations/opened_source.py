"""A source of conversations once it is prepared: its samples, what became of its records, and which are held out."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from loong_core.data.shuffle import held_out_split
from loong_core.data.sources import Weighted
from loong_core.errors import UserError
from loong_llm.conversations.preparation import PreparationCount


class SampleStore(Protocol):
    """Prepared samples."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def select(self, samples: NDArray[np.int64], label: str, /) -> Self:
        """Some of them; `label` says which, for messages."""
        ...


@dataclass(frozen=True)
class OpenedSource[S: Weighted, T: SampleStore]:
    """One source's samples, and what became of its records."""

    source: S
    store: T
    count: PreparationCount


def opened[S: Weighted, T: SampleStore](source: S, store: T, made_from: dict[str, Any]) -> OpenedSource[S, T]:
    """A source with its samples.

    Args:
        source: the source.
        store: its samples.
        made_from: what the store's folder says of its making, see `made_from_of`.

    Raises:
        UserError: there is no sample.
    """
    count = PreparationCount.from_json(made_from["count"])
    if len(store) == 0:
        why = count.left_out_text() or "there is not one record"
        raise UserError(f"{source.path}: no sample to train on: {why}")
    return OpenedSource(source, store, count)


def made_from_of(folder: Path) -> dict[str, Any]:
    """What a store's folder says of its making."""
    return json.loads((folder / "store.json").read_text(encoding="utf-8"))["made_from"]


def hold_out[S: Weighted, T: SampleStore](
    train: list[OpenedSource[S, T]], fraction: float
) -> tuple[list[OpenedSource[S, T]], list[OpenedSource[S, T]]]:
    """Split each source's samples; which are held out depends on nothing but their number.

    Raises:
        UserError: a source has fewer than two.
    """
    kept, held_out = [], []
    for part in train:
        samples = len(part.store)
        if samples < 2:
            raise UserError(
                f"data.validation_fraction {fraction} needs at least two samples in each source, {part.source.path} "
                f"has {samples}; give data.validation instead"
            )
        training, own = held_out_split(samples, fraction)
        kept.append(replace(part, store=part.store.select(training, "training part")))
        held_out.append(replace(part, store=part.store.select(own, "held-out part")))
    return kept, held_out


def left_out_texts(parts: Iterable[OpenedSource[Any, Any]]) -> list[str]:
    """A line for each source of which records were left out; parts of one source have one."""
    once = {id(part.count): part for part in parts}.values()
    return [f"{part.source.path}: {part.count.left_out_text()}" for part in once if part.count.left_out]
