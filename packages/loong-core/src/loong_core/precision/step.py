"""A step of training in 8 bits: weights rounded once, rounding errors measured now and then, and acted upon."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from loong_core.precision.adaptive import AdaptiveChoice
from loong_core.precision.layer import LayerPrecision

logger = logging.getLogger(__name__)


class StepPrecision:
    """The layers of one rank that compute in 8 bits, step after step.

    Args:
        layers: those layers.
        hold: whether weights in 8 bits are kept from one microbatch to the next; where an engine gathers weights for
            each use, they are rounded for each use too.
        error_bound: see `PrecisionSettings`.
        check_every: likewise.
        adaptive: the choice that adaptive layers share; what it decides is told after the step.
        say: takes a line of news; by default the log does.
    """

    def __init__(
        self,
        layers: Sequence[LayerPrecision],
        *,
        hold: bool,
        error_bound: float = 0.06,
        check_every: int = 100,
        adaptive: AdaptiveChoice | None = None,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        self.layers = list(layers)
        self._hold = hold
        self._bound, self._every = error_bound, check_every
        self._adaptive = adaptive
        self._say = say
        self._steps = self._told = 0

    @contextmanager
    def step(self, *, training: bool = True) -> Iterator[None]:
        """Around the forward and backward of all microbatches of a step, between two changes of the weights."""
        measure = training and bool(self.layers) and self._steps % self._every == 0
        self._steps += training
        for layer in self.layers:
            layer.begin(hold=self._hold, measure=measure)
        measured: list[tuple[LayerPrecision, str, torch.Tensor]] = []
        try:
            yield
        finally:
            for layer in self.layers:
                measured += [(layer, what, error) for what, error in layer.end().items()]
            if measure and measured:
                self._guard(measured)
            self._tell_decisions()

    def metrics(self) -> dict[str, float]:
        """For the log: the share of these layers that the guard has not taken back to bf16."""
        if not self.layers:
            return {}
        in_bits = sum(layer.fallen_back is None for layer in self.layers)
        return {"fp8_layers": in_bits / len(self.layers)}

    def _guard(self, measured: list[tuple[LayerPrecision, str, torch.Tensor]]) -> None:
        """Take layers back to bf16 whose errors are above the bound; waits for the device, once for all of them."""
        errors = torch.stack([error for _, _, error in measured]).tolist()
        for (layer, what, _), error in zip(measured, errors):
            # An error that is no number comes of values that are none: a matter for the run's own guards.
            if error > self._bound and layer.fallen_back is None:
                layer.fallen_back = f"rounding its {what} to 8 bits changes it by {error:.1%}, above {self._bound:.1%}"
                self._say(f"{layer.name} goes back to bf16: {layer.fallen_back}")

    def _tell_decisions(self) -> None:
        if self._adaptive is not None:
            for line in self._adaptive.decisions[self._told :]:
                self._say(f"adaptive precision: {line}")
            self._told = len(self._adaptive.decisions)
