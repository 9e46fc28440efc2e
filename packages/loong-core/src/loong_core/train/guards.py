"""What must not be applied to the weights: a loss or gradient that is not finite, and by choice a loss that spikes."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from loong_core.config.sections import SpikeSection
from loong_core.engine.base import ForwardStep, LossTerms, StepLoss
from loong_core.errors import NumericalError
from loong_core.parallel.crew import Crew


class FiniteGuard:
    """Stops a run before a step that is not finite, and says on which ranks the loss was.

    The loss that an engine reports is summed over ranks, so a NaN on one of them is seen by all; to name that one, each
    rank remembers whether its own microbatches' losses were finite, on the device and without waiting for it.
    """

    def __init__(self, forward_step: ForwardStep) -> None:
        self._forward_step = forward_step
        self._broken: Tensor | None = None

    def forward_step(self, model: nn.Module, batch: Any, hidden: Tensor | None) -> LossTerms | Tensor:
        """The recipe's forward, watched."""
        result = self._forward_step(model, batch, hidden)
        if isinstance(result, LossTerms):
            broken = ~torch.isfinite(result.loss_sum.detach())
            self._broken = broken if self._broken is None else self._broken | broken
        return result

    def check(self, step: int, loss: StepLoss, grad_norm: float) -> None:
        """Raise NumericalError where the step's loss or gradient is not finite. Collective when it is not."""
        broken, self._broken = self._broken, None
        if math.isfinite(loss.loss) and math.isfinite(grad_norm):
            return
        flags = Crew().gather(broken is not None and bool(broken))
        ranks = [rank for rank, flag in enumerate(flags) if flag]
        where = f" (first seen in the loss of rank {', '.join(map(str, ranks))})" if ranks else ""
        source = where or (" (the loss is finite, a gradient is not)" if math.isfinite(loss.loss) else "")
        raise NumericalError(
            f"step {step}: loss is {loss.loss}, gradient norm is {grad_norm}{source}. The step was not applied. "
            "The same command meets the same data again: look at that, try precision=fp32, or start with a lower "
            "train.lr into another output"
        )


class SpikeGuard:
    """Compares each step's loss with the median of those before it."""

    def __init__(self, settings: SpikeSection, losses: Iterable[float] = ()) -> None:
        self.settings = settings
        self._losses: deque[float] = deque(losses, maxlen=settings.window)

    @property
    def losses(self) -> list[float]:
        """The window, to be kept in checkpoints: a resumed run then judges as one that never stopped."""
        return list(self._losses)

    def judge(self, step: int, loss: float) -> str | None:
        """None if the loss is no spike, else what to say of it.

        Spikes enter the window too: a loss that has moved for good is the usual one after half a window.

        Raises:
            NumericalError: at a spike under policy `stop`.
        """
        usual = statistics.median(self._losses) if len(self._losses) == self.settings.window else math.inf
        self._losses.append(loss)
        if loss <= self.settings.factor * usual:
            return None
        found = f"step {step}: loss {loss:.4g} is {loss / usual:.2f} times the median {usual:.4g} of the last "
        found += f"{self.settings.window} steps (train.spike.factor {self.settings.factor:g})"
        if self.settings.policy == "stop":
            raise NumericalError(
                f"{found}. The step was not applied (train.spike.policy stop). The same command with "
                "train.spike.policy=skip or report goes on"
            )
        return found + (", its gradients were dropped" if self.settings.policy == "skip" else "")
