"""Steps that must not be applied are stopped, in words that say what was seen."""

import math

import pytest
import torch

from loong_core.config import SpikeSection
from loong_core.engine.base import LossTerms, StepLoss
from loong_core.errors import NumericalError
from loong_core.train.guards import FiniteGuard, SpikeGuard


def forward_giving(value):
    return lambda model, batch, hidden: LossTerms(torch.tensor(value), torch.tensor(1))


def test_a_finite_step_passes():
    FiniteGuard(forward_giving(1.0)).check(3, StepLoss(1.0, 4), 0.5)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_the_run_and_names_step_value_and_rank(value):
    guard = FiniteGuard(forward_giving(value))
    guard.forward_step(torch.nn.Identity(), None, None)
    with pytest.raises(NumericalError) as stopped:
        guard.check(7, StepLoss(value, 4), 0.5)
    assert stopped.value.exit_status == 3
    assert f"step 7: loss is {value}, gradient norm is 0.5 (first seen in the loss of rank 0)" in str(stopped.value)
    assert "The step was not applied" in str(stopped.value)


def test_a_gradient_that_is_not_finite_stops_the_run_too():
    guard = FiniteGuard(forward_giving(1.0))
    guard.forward_step(torch.nn.Identity(), None, None)
    with pytest.raises(NumericalError, match="gradient norm is inf \\(the loss is finite, a gradient is not\\)"):
        guard.check(7, StepLoss(1.0, 4), math.inf)


def test_hidden_states_of_a_pipeline_stage_pass_through_unwatched():
    hidden = torch.tensor([math.nan])
    assert FiniteGuard(lambda model, batch, value: value).forward_step(torch.nn.Identity(), None, hidden) is hidden


def judged(losses, **settings):
    guard = SpikeGuard(SpikeSection.model_validate({"window": 4, "factor": 2.0, **settings}))
    return [guard.judge(step, loss) for step, loss in enumerate(losses, 1)]


def test_a_loss_far_above_the_usual_is_reported_with_its_numbers():
    *quiet, said = judged([1.0, 1.0, 1.2, 1.1, 3.15])
    assert quiet == [None] * 4
    assert said == "step 5: loss 3.15 is 3.00 times the median 1.05 of the last 4 steps (train.spike.factor 2)"


def test_nothing_is_a_spike_before_the_window_is_full():
    assert judged([1.0, 1.0, 9.0]) == [None] * 3


def test_policy_stop_ends_the_run_before_the_step():
    with pytest.raises(NumericalError, match=r"step 5: loss 4 is 4.00 times .* not applied"):
        judged([1.0] * 4 + [4.0], policy="stop")


def test_a_loss_that_has_risen_for_good_is_soon_the_usual_one():
    said = judged([1.0] * 4 + [4.0] * 6, policy="skip")
    assert [found is not None for found in said[4:]] == [True, True, False, False, False, False]


def test_a_resumed_guard_judges_as_one_that_never_stopped():
    first = SpikeGuard(SpikeSection(window=4))
    for step, loss in enumerate([1.0, 2.0, 1.0, 2.0, 1.5], 1):
        first.judge(step, loss)
    assert SpikeGuard(SpikeSection(window=4), first.losses).judge(6, 9.0) == first.judge(6, 9.0)
