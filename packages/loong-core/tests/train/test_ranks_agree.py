"""What only one rank has seen, all ranks act on, at the same step."""

import math
import signal

import torch

from loong_core.device import select
from loong_core.engine.base import LossTerms, StepLoss
from loong_core.errors import NumericalError
from loong_core.parallel.crew import Crew
from loong_core.train.guards import FiniteGuard
from loong_core.train.step_clock import StepClock


def check_a_loss_that_is_broken_on_rank_1():
    mine = math.nan if Crew().rank == 1 else 1.0
    guard = FiniteGuard(lambda model, batch, hidden: LossTerms(torch.tensor(mine), torch.tensor(1)))
    guard.forward_step(torch.nn.Identity(), None, None)
    try:
        guard.check(4, StepLoss(math.nan, 2), math.nan)
    except NumericalError as error:
        return str(error)
    return "not stopped"


def agree_on_a_signal_that_reached_rank_1():
    clock = StepClock(select("cpu").device, Crew().size, 100, 6.0, None)
    clock.start()
    clock.data_ready()
    return clock.finish(3, signal.SIGTERM if Crew().rank == 1 else 0)


def test_the_rank_whose_loss_is_no_number_is_named_on_every_rank(ranks):
    said = ranks.run(2, check_a_loss_that_is_broken_on_rank_1)
    assert said[0] == said[1]
    assert "step 4: loss is nan, gradient norm is nan (first seen in the loss of rank 1)" in said[0]


def test_a_signal_that_reached_one_rank_is_every_ranks_and_figures_are_the_slowest_ranks(ranks):
    (figures, number), other = ranks.run(2, agree_on_a_signal_that_reached_rank_1)
    assert (figures, number) == other
    assert number == signal.SIGTERM
    assert figures["tokens"] == 300
