"""An engine of several components: a decoder that any engine runs, and encoders that feed it.

All ranks of a copy of the decoder encode first, each its share of the items of all microbatches. The features travel
to the decoder's stages that read them, its schedule runs as ever, gradients travel back, and the encoders' backward
runs on all ranks again. So an encoder has a layout, engine and recomputation of its own, and is on no pipeline's
critical path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain
from math import sqrt
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from loong_core.checkpoint.pieces import StatePiece
from loong_core.engine.base import Engine, ForwardStep, LedEngine, StepLoss
from loong_core.engine.components.features import WaitingRoom
from loong_core.engine.components.feeding import Feeding
from loong_core.engine.components.journey import Journey
from loong_core.parallel.context import ParallelContext


@dataclass(frozen=True)
class Feeder:
    """A component that feeds another.

    Attributes:
        name: what it is called in news and errors.
        engine: runs it; its layout has one stage.
        context: its.
        feeding: how its features reach the decoder.
        width: of a feature.
        dtype: in which features travel.
        offload: whether features wait for the decoder on the host, and so do their gradients for the way back.
    """

    name: str
    engine: LedEngine
    context: ParallelContext
    feeding: Feeding
    width: int
    dtype: torch.dtype
    offload: bool = False


class ComponentsEngine(Engine):
    """Trains a decoder together with what feeds it, as one model: one loss, one gradient norm, one step.

    Args:
        main: the decoder's engine.
        context: the decoder's, whose data ranks read the data.
        feeders: in the order in which microbatches are fed.
    """

    def __init__(self, main: Engine, context: ParallelContext, feeders: Sequence[Feeder]) -> None:
        self.main = main
        self.context = context
        self.feeders = list(feeders)
        self.device = main.device
        self.stages = [stage for engine in self._engines for stage in engine.stages]

    @property
    def updates(self) -> int:  # type: ignore[override]
        """Optimizer steps taken so far."""
        return self.main.updates

    @property
    def _engines(self) -> list[Engine]:
        return [self.main, *(feeder.engine for feeder in self.feeders)]

    def accumulate(self, microbatches: Sequence[Any], forward_step: ForwardStep) -> StepLoss:
        """As `Engine.accumulate`; the microbatches given to the decoder are those with features."""
        trained = [feeder for feeder in self.feeders if _is_trained(feeder.engine)]
        for feeder in self.feeders:
            feeder.engine.begin_gradients()
        fed, journeys = self._feed(microbatches, trained)
        with record_function("decoder"):
            loss = self.main.accumulate(fed, forward_step)
        del fed
        for feeder in reversed(trained):
            rounds = journeys[feeder.name]
            for journey in rounds:
                journey.give_back()
            for number, journey in enumerate(rounds):
                feeder.engine.before_backward(last=journey is rounds[-1])
                with record_function(f"{feeder.name}: backward of round {number}"):
                    journey.backward()
        for feeder in self.feeders:
            feeder.engine.end_gradients(loss.tokens)
        return loss

    def evaluate(self, microbatches: Sequence[Any], forward_step: ForwardStep) -> StepLoss:
        """Loss without gradient."""
        with ExitStack() as stack:
            for feeder in self.feeders:
                stack.enter_context(feeder.engine.evaluation())
            fed, _ = self._feed(microbatches, [])
        return self.main.evaluate(fed, forward_step)

    def _feed(self, batches: Sequence[Any], trained: Sequence[Feeder]) -> tuple[list[Any], dict[str, list[Journey]]]:
        """The microbatches with every feeder's features, and the journeys on which gradients are to return."""
        fed, journeys = list(batches), {}
        for feeder in self.feeders:
            learns = feeder in trained
            room = WaitingRoom(self.device) if feeder.offload else None
            together = self.context.model.size // feeder.context.tensor.size  # a microbatch a lane, and all have work
            rounds = [
                Journey(fed[start : start + together], feeder.feeding, feeder.context, self.context, feeder.dtype, room)
                for start in range(0, len(fed), together)
            ]
            (stage,) = feeder.engine.stages
            fed = []
            for number, journey in enumerate(rounds):
                with torch.set_grad_enabled(learns), record_function(f"{feeder.name}: encode round {number}"):
                    journey.encode(stage, must=feeder.engine.every_rank_runs)
                journey.send(feeder.width)
                if number:  # the round before has travelled meanwhile
                    fed += rounds[number - 1].fed(with_gradients=learns)
            for journey in rounds[-1:]:
                fed += journey.fed(with_gradients=learns)
            if room is not None:
                room.settle()
            journeys[feeder.name] = rounds
        return fed, journeys

    def grad_norm(self) -> float:
        """Euclidean norm over all components' gradients."""
        return sqrt(sum(engine.grad_norm() ** 2 for engine in self._engines))

    def apply(self, lr: float, *, norm: float | None = None) -> None:
        """Clip by the norm over all components and take one step with each."""
        norm = self.grad_norm() if norm is None else norm
        for engine in self._engines:
            engine.apply(lr, norm=norm)

    def discard(self) -> None:
        """Drop the accumulated gradients of all components."""
        for engine in self._engines:
            engine.discard()

    @contextmanager
    def evaluation(self) -> Iterator[list[nn.Module]]:
        """As `Engine.evaluation`, the decoder's modules first."""
        with ExitStack() as stack:
            yield [stage for engine in self._engines for stage in stack.enter_context(engine.evaluation())]

    def state_pieces(self, *, optimizer: bool = True) -> Iterator[StatePiece]:
        """Every component's, whose canonical names do not meet."""
        for engine in self._engines:
            yield from engine.state_pieces(optimizer=optimizer)

    def load_state(self, read: Callable[[StatePiece], Tensor | None], *, optimizer: bool = True) -> None:
        """Fill every component."""
        for engine in self._engines:
            engine.load_state(read, optimizer=optimizer)

    def set_updates(self, updates: int) -> None:
        """Continue every component from this many steps."""
        for engine in self._engines:
            engine.set_updates(updates)

    def gradient_pieces(self) -> Iterator[StatePiece]:
        """Every component's."""
        return chain.from_iterable(engine.gradient_pieces() for engine in self._engines)

    def weight_pieces(self) -> Iterable[StatePiece]:
        """Every component's."""
        return chain.from_iterable(engine.weight_pieces() for engine in self._engines)


def _is_trained(engine: Engine) -> bool:
    return any(parameter.requires_grad for stage in engine.stages for parameter in stage.parameters())
