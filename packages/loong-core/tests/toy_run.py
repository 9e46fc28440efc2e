"""A run small enough to see through: one weight fitted to numbers, with the real loop, run folder and checkpoints."""

from __future__ import annotations

import math
import os
import signal

import torch
from torch import nn

from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.config import RunConfig, load_run
from loong_core.device import select
from loong_core.engine.base import Engine, LossTerms, StepLoss
from loong_core.parallel.crew import Crew
from loong_core.train.loop import Work, train
from loong_core.train.run import open_run


class ToyEngine(Engine):
    """Plain gradient descent on one float64 weight."""

    def __init__(self):
        self.weight = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))
        self.stages = [nn.ParameterList([self.weight])]
        self.device = select("cpu").device
        self.updates = 0

    def accumulate(self, microbatches, forward_step):
        terms = [forward_step(self.stages[0], batch, None) for batch in microbatches]
        loss = sum(term.loss_sum for term in terms) / len(terms)
        loss.backward()
        return StepLoss(loss.item(), len(terms), {"doubled": 2 * loss.item()})

    def grad_norm(self):
        return self.weight.grad.norm().item()

    def apply(self, lr):
        with torch.no_grad():
            self.weight -= lr * self.weight.grad
        self.updates += 1
        self.discard()

    def discard(self):
        self.weight.grad = None

    def evaluate(self, microbatches, forward_step):
        with torch.no_grad():
            terms = [forward_step(self.stages[0], batch, None) for batch in microbatches]
        return StepLoss(sum(term.loss_sum.item() for term in terms) / len(terms), len(terms))

    def state_pieces(self, *, optimizer=True):
        held = self.weight.detach() if Crew().rank == 0 else None  # every rank has it, one writes it
        yield StatePiece("weight", Piece.whole("w", (1,)), held)

    def load_state(self, read, *, optimizer=True):
        values = read(StatePiece("weight", Piece.whole("w", (1,))))
        if values is not None:
            self.weight.data.copy_(values)

    def set_updates(self, updates):
        self.updates = updates

    def gradient_pieces(self):
        return iter(())

    weight_pieces = state_pieces


class Numbers:
    """A stream of numbers; `events` are called when their step's data is asked for."""

    def __init__(self, events=None):
        self.step = 0
        self.events = events or {}

    def next_step(self):
        self.step += 1
        value = self.events.get(self.step, lambda: None)()
        base = math.sin(self.step) if value is None else value
        return [torch.tensor([base], dtype=torch.float64), torch.tensor([base + 0.1], dtype=torch.float64)]

    def state_dict(self):
        return {"step": self.step}

    def load_state_dict(self, state):
        self.step = state["step"]


def forward(model, batch, hidden):
    return LossTerms(((model[0] - batch) ** 2 + 1).sum(), torch.tensor(1))


def run_toy(output, *overrides, events=None, validate=False, held_out=(0.0, 1.0), between=None, export=None):
    """Train the toy; returns its progress and its last weight."""
    settings = [f"output={output}", "device=cpu", "train.steps=8", "train.lr=0.1", "train.spike.window=4", *overrides]
    loaded = load_run(RunConfig, None, settings)
    assert loaded.faults == []
    engine = ToyEngine()
    numbers = [[torch.tensor([number], dtype=torch.float64)] for number in held_out]
    work = Work(
        engine,
        Numbers(events),
        forward,
        8,
        100,
        6.0,
        (lambda: numbers) if validate else None,
        between=between,
        export=export,
    )
    with open_run(loaded.config) as run:
        progress = train(run, work)
    return progress, engine.weight.item()


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)
