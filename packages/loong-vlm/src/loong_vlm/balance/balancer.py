"""Balancing as a run does it: plans step after step, reports, and the cost model fitted to the first steps.

A plan is made when a step is read, ahead of its training; a step is measured when it is done. Both happen in the same
order on every rank, so a model that is fitted after a certain step takes effect at the same later step everywhere.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from loong_core.data.shared_build import from_first_rank
from loong_vlm.balance.cost import CostModel, Floats
from loong_vlm.balance.fitting import MeasuredStep, fit
from loong_vlm.balance.plan import Item, Plan, Room, make_plan

READ_AHEAD = 8
"""Steps that may have been planned before the present one is done; a new model waits for so many."""


@dataclass(frozen=True)
class _Planned:
    """A step that was planned: how even it is, and `[ranks, 5]` features of what each rank has."""

    before: float
    after: float
    features: Floats


class Balancer:
    """Plans the global batches of a run.

    Args:
        model: the costs to begin with.
        fit_steps: steps that are measured before the model is fitted; 0 keeps the model given.
        skip_steps: steps before those, in which kernels are compiled and memory is found.
    """

    def __init__(self, model: CostModel, *, fit_steps: int = 10, skip_steps: int = 2) -> None:
        self.model = model
        self._first_model = model
        self._fit_steps = fit_steps
        self._skip_steps = skip_steps
        self.fitted = False
        self._waiting: deque[_Planned] = deque()
        self._measured: list[MeasuredStep] = []
        self._planned_steps = 0
        self._done_steps = 0
        self._next: tuple[int, CostModel] | None = None

    def plan(
        self,
        items: Sequence[Item],
        sequences: Sequence[Sequence[int]],
        ranks: int,
        room: Room,
        micro_batch_size: int,
        *,
        move_samples: bool = True,
    ) -> Plan:
        """The plan of the next step; arguments are `make_plan`'s."""
        if self._next is not None and self._planned_steps >= self._next[0]:
            self.model, self._next = self._next[1], None
        plan = make_plan(items, sequences, ranks, room, self.model, micro_batch_size, move_samples=move_samples)
        loads = [
            np.sum([items[item].features for sequence in own for item in sequence], axis=0, initial=0.0)
            for own in plan.ranks
        ]
        counted = np.stack([np.broadcast_to(load, (5,)) for load in loads])
        self._waiting.append(_Planned(plan.before, plan.after, counted))
        self._planned_steps += 1
        return plan

    def finish_step(self, row: dict[str, Any]) -> dict[str, float]:
        """A step is done: how uneven it was. Collective after the last measured step, at the same step on every rank.

        Args:
            row: the step's figures, the same on every rank; `step_seconds` and `data_seconds` are used.
        """
        planned = self._waiting.popleft()
        self._done_steps += 1
        seconds = row["step_seconds"] - row["data_seconds"]
        if self._done_steps > self._skip_steps and not self.fitted and len(self._measured) < self._fit_steps:
            self._measured.append(MeasuredStep(planned.features, max(seconds, 1e-9)))
            if len(self._measured) == self._fit_steps:
                coefficients = from_first_rank(lambda: fit(self._measured, self._first_model).coefficients.tolist())
                self._next = self._done_steps + READ_AHEAD, CostModel.of(coefficients)
                self.fitted = True
        return {"imbalance_before": planned.before, "imbalance": planned.after}

    def state(self) -> dict[str, Any]:
        """The present model, and the one that is about to take its place."""
        model = self._next[1] if self._next is not None else self.model
        return {"coefficients": model.coefficients.tolist(), "fitted": self.fitted}

    def restart(self, state: dict[str, Any] | None) -> None:
        """Begin anew from a checkpoint's model; steps that were planned ahead are forgotten."""
        self._waiting.clear()
        self._measured.clear()
        self._planned_steps = self._done_steps = 0
        self._next = None
        self.fitted = bool(state and state["fitted"])
        if state is not None and state["fitted"]:
            self.model = CostModel.of(state["coefficients"])
