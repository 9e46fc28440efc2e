"""The cost model measured: coefficients from the times of a run's first steps.

Data ranks work side by side and a step ends with the slowest, so the time of a step is the largest of its ranks' costs.
Which rank that was is not measured but follows from the model; so the two are found in turn, as in max-affine
regression: the heaviest rank of each step under the present model, then the model from these ranks' times.

Steps hold about equally many tokens, which leaves some coefficients free. These stay where the model that came before
has them: coefficients are sought as multiples of its own, each drawn a little towards one common factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loong_vlm.balance.cost import CostModel, Floats

_ROUNDS = 20
_SWEEPS = 2000
_PULL = 1e-3
"""How strongly a coefficient is drawn to the common factor, beside one step's evidence."""


@dataclass(frozen=True)
class MeasuredStep:
    """One step.

    Attributes:
        features: `[ranks, 5]`, summed over each data rank's samples.
        seconds: that it took from the first forward to the last gradient; of one rank, if `features` has one row.
    """

    features: Floats
    seconds: float


def fit(steps: Sequence[MeasuredStep], start: CostModel) -> CostModel:
    """The cost model in seconds that explains measured steps best.

    Args:
        steps: what was measured; at least one.
        start: the model that was used so far, in any unit; a coefficient of 0 stays 0.

    Raises:
        ValueError: no step, or a step without time or work.
    """
    if not steps or any(step.seconds <= 0 or not step.features.any() for step in steps):
        raise ValueError("measured steps must have taken time for some work")
    seconds = np.array([step.seconds for step in steps])
    model = start.coefficients
    for _ in range(_ROUNDS):
        slowest = np.stack([step.features[int((step.features @ model).argmax())] for step in steps])
        found = _multiples(slowest, seconds, start.coefficients)
        if np.allclose(found, model, rtol=1e-6, atol=0):
            break
        model = found
    return CostModel.of(model)


def _multiples(counted: Floats, seconds: Floats, start: Floats) -> Floats:
    """Least squares for multiples of `start`, none negative: `[5]` coefficients."""
    expected = counted @ start
    factor = float(expected @ seconds / (expected @ expected))
    columns = counted * (factor * start)  # [steps, 5]; all multiples 1 is `factor` times the start
    scale = float(np.linalg.norm(seconds))
    pull = _PULL * np.eye(len(start))
    matrix = np.concatenate([columns / scale, pull])
    wanted = np.concatenate([seconds / scale, np.full(len(start), _PULL)])
    return factor * start * _nonnegative_least_squares(matrix, wanted)


def _nonnegative_least_squares(matrix: Floats, wanted: Floats) -> Floats:
    """`x >= 0` that minimises `|matrix x - wanted|`, by coordinate descent: small, strictly convex problems only."""
    gram, target = matrix.T @ matrix, matrix.T @ wanted
    found = np.ones(len(target))
    for _ in range(_SWEEPS):
        before = found.copy()
        for place in range(len(found)):
            slope = target[place] - gram[place] @ found + gram[place, place] * found[place]
            found[place] = max(slope / gram[place, place], 0.0)
        if np.abs(found - before).max() < 1e-9:
            break
    return found
