"""What the training loop asks of an engine, and what an engine asks of a model.

A model is a plain module, built once for each pipeline stage. An engine wraps it, runs forward and backward over
microbatches, and owns the optimizer. The loop decides between `accumulate` and `apply` whether a step may be applied.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from loong_core.checkpoint.pieces import StatePiece
from loong_core.device.protocol import Device
from loong_core.precision.step import StepPrecision


@dataclass(frozen=True)
class LossTerms:
    """One microbatch's loss before normalisation.

    Attributes:
        loss_sum: scalar with gradient, summed over the trained tokens of this rank's microbatch.
        tokens: scalar int64 tensor, how many tokens were summed over; or samples, where a task's mean is over these.
        metrics: detached scalars to log, averaged over microbatches.
    """

    loss_sum: Tensor
    tokens: Tensor
    metrics: dict[str, Tensor] = field(default_factory=dict)


class ForwardStep(Protocol):
    """A recipe's forward: `(model, batch, hidden)` to `LossTerms` on the last pipeline stage, else to hidden states.

    `hidden` is what the previous stage sent, `[tokens, hidden_size]`, or None on the first stage.
    """

    def __call__(self, model: nn.Module, batch: Any, hidden: Tensor | None) -> LossTerms | Tensor: ...  # noqa: D102


@dataclass(frozen=True)
class StepLoss:
    """A global batch's loss, equal on every rank.

    Attributes:
        loss: mean over the trained tokens of the whole global batch.
        tokens: number of those tokens, or samples.
        metrics: what the recipe logged, averaged over the global batch's microbatches.
    """

    loss: float
    tokens: int
    metrics: dict[str, float] = field(default_factory=dict)


class Engine(ABC):
    """Runs a model over a layout of ranks. All methods are collective: every rank calls them in the same order."""

    stages: list[nn.Module]
    """This rank's modules, one a virtual pipeline stage, unwrapped."""

    device: Device
    """The run's device, whose random state a checkpoint keeps."""

    updates: int
    """Optimizer steps taken so far; a checkpoint keeps it, since Adam's bias correction depends on it."""

    precision: StepPrecision | None = None
    """The layers that compute in 8 bits, if there are any; set before the first step."""

    def step_in_bits(self, *, training: bool) -> AbstractContextManager[None]:
        """For implementations, around the forward and backward of all microbatches: 8-bit weights are held within."""
        return nullcontext() if self.precision is None else self.precision.step(training=training)

    def with_precision(self, loss: StepLoss) -> StepLoss:
        """For implementations: a step's result with what is logged about 8 bits."""
        return loss if self.precision is None else replace(loss, metrics=loss.metrics | self.precision.metrics())

    @abstractmethod
    def accumulate(self, microbatches: Sequence[Any], forward_step: ForwardStep) -> StepLoss:
        """Forward and backward over this data rank's microbatches; gradients are then the global batch's mean's.

        Context ranks are given the same whole microbatches; the engine hands each its share of the tokens.
        """

    @abstractmethod
    def grad_norm(self) -> float:
        """Euclidean norm of the accumulated gradients over all ranks, before clipping; NaN or Inf if any element is."""

    @abstractmethod
    def apply(self, lr: float, *, norm: float | None = None) -> None:
        """Clip the accumulated gradients to the configured norm and take one optimizer step at rate `lr`.

        Args:
            lr: the learning rate.
            norm: what the gradients' norm is taken for; where they are part of a larger model's, the whole model's.
        """

    @abstractmethod
    def discard(self) -> None:
        """Drop the accumulated gradients; weights and optimizer state stay as they were."""

    @abstractmethod
    def evaluate(self, microbatches: Sequence[Any], forward_step: ForwardStep) -> StepLoss:
        """Loss without gradient."""

    @contextmanager
    def evaluation(self) -> Iterator[list[nn.Module]]:
        """This rank's modules with their weights whole, in evaluation mode and without gradients: to write samples."""
        training = [stage.training for stage in self.stages]
        for stage in self.stages:
            stage.eval()
        try:
            with torch.no_grad():
                yield self.stages
        finally:
            for stage, was_training in zip(self.stages, training, strict=True):
                stage.train(was_training)

    @abstractmethod
    def state_pieces(self, *, optimizer: bool = True) -> Iterator[StatePiece]:
        """This rank's share of the run's state, in boxes of canonical (Hugging Face) tensors.

        Each element of the state is yielded by at least one rank. Tensors are borrowed: a caller that keeps one past
        the next step clones it. Weights are the optimizer's float32 main weights where it keeps some; with
        `optimizer`, its moments are yielded too.
        """

    @abstractmethod
    def load_state(self, read: Callable[[StatePiece], Tensor | None], *, optimizer: bool = True) -> None:
        """Fill this rank's share; `read` is given each piece wanted (its `tensor` unset) and returns its values."""

    @abstractmethod
    def set_updates(self, updates: int) -> None:
        """Continue from this many optimizer steps."""

    @abstractmethod
    def gradient_pieces(self) -> Iterator[StatePiece]:
        """This rank's share of the accumulated gradients (kind `gradient`), before clipping; as `state_pieces`."""

    @abstractmethod
    def weight_pieces(self) -> Iterable[StatePiece]:
        """The model's weights as they are used in forward, for export; as `state_pieces`, weights only."""


class LedEngine(Engine):
    """An engine whose forward and backward may also be run from outside, as those of a part of a larger model.

    Between `begin_gradients` and `end_gradients` whoever leads calls `stages[0]` and runs backward through it.
    """

    every_rank_runs: bool
    """Whether all ranks have to call the module and run its backward equally often, with nothing to do too."""

    @abstractmethod
    def begin_gradients(self) -> None:
        """Begin a step: there are no gradients yet."""

    @abstractmethod
    def before_backward(self, *, last: bool) -> None:
        """Before each backward through the module; `last`: whether it is the step's last."""

    @abstractmethod
    def end_gradients(self, tokens: int) -> None:
        """Reduce what was accumulated over ranks, and make of sums over a global batch its mean over `tokens`."""
