"""How far two runs are apart: figures of the steps that both have, and the routers' choices where both kept them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loong_core.errors import UserError
from loong_core.train.router_record import differing_in_step, kept_steps

FIGURES = ("loss", "grad_norm", "val_loss")
"""Of a step's row in `metrics.jsonl`, those that say what was computed."""

Row = dict[str, Any]


@dataclass(frozen=True)
class FigureDifference:
    """One figure in the steps that both runs have.

    Attributes:
        name: its key in the rows.
        steps: in how many both have it.
        largest: the largest absolute difference.
        largest_relative: the same difference relative to the second run's value.
        at: the step of it.
        last_step: the last step that both have.
        last: the two values then.
    """

    name: str
    steps: int
    largest: float
    largest_relative: float
    at: int
    last_step: int
    last: tuple[float, float]


@dataclass(frozen=True)
class ChoiceDifference:
    """Routers' choices in the steps of which both runs kept them.

    Attributes:
        steps: how many.
        different: choices of the first run that the second does not have for the same token.
        total: of how many.
        first_step: the first step with one, None without.
    """

    steps: int
    different: int
    total: int
    first_step: int | None


def compare_figures(ours: Sequence[Row], theirs: Sequence[Row]) -> list[FigureDifference]:
    """The differences of `FIGURES`, of those that both runs have.

    Raises:
        UserError: there is no step that both have.
    """
    other = {row["step"]: row for row in theirs}
    pairs = [(row, other[row["step"]]) for row in ours if row["step"] in other]
    if not pairs:
        raise UserError(f"the runs have no step in common: one has {_steps(ours)}, the other {_steps(theirs)}")
    found = []
    for name in FIGURES:
        values = [
            (mine["step"], float(mine[name]), float(its[name]))
            for mine, its in pairs
            if isinstance(mine.get(name), int | float) and isinstance(its.get(name), int | float)
        ]
        if not values:
            continue
        at, mine, its = max(values, key=lambda each: abs(each[1] - each[2]))
        relative = abs(mine - its) / abs(its) if its else float(mine != its)
        last_step, *last = values[-1]
        found.append(FigureDifference(name, len(values), abs(mine - its), relative, at, last_step, (last[0], last[1])))
    return found


def compare_choices(ours: Path, theirs: Path) -> ChoiceDifference | None:
    """The differences of the choices kept in two folders (`RunFolder.router_choices`); None if no step is in both.

    Raises:
        UserError: they are not of the same tokens and layers.
    """
    mine, other = kept_steps(ours), kept_steps(theirs)
    counted = {step: differing_in_step(mine[step], other[step]) for step in mine if step in other}
    if not counted:
        return None
    return ChoiceDifference(
        len(counted),
        sum(different for different, _ in counted.values()),
        sum(total for _, total in counted.values()),
        next((step for step, (different, _) in counted.items() if different), None),
    )


def _steps(rows: Sequence[Row]) -> str:
    return f"{rows[0]['step']} to {rows[-1]['step']}"
