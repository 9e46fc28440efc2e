"""The learning rate of each step, in numbers."""

import pytest

from loong_core.config import TrainSection
from loong_core.train.schedule import learning_rate


def rates(steps, **settings):
    train = TrainSection.model_validate({"lr": 1.0, **settings})
    return [learning_rate(train, steps, step) for step in range(1, steps + 1)]


def test_warm_up_reaches_the_peak_at_its_last_step():
    assert rates(6, warmup_steps=4, schedule="constant") == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_cosine_falls_from_peak_to_minimum_over_the_rest():
    found = rates(6, warmup_steps=2, min_lr=0.2)
    assert found == pytest.approx([0.5, 1.0, 0.8828427, 0.6, 0.3171573, 0.2])


def test_linear_falls_evenly_and_stays_at_the_minimum_after_its_decay():
    assert rates(6, schedule="linear", decay_steps=4, min_lr=0.2) == pytest.approx([0.8, 0.6, 0.4, 0.2, 0.2, 0.2])


def test_wsd_stays_at_the_peak_and_falls_over_the_last_steps():
    assert rates(6, warmup_steps=1, schedule="wsd", decay_steps=2) == pytest.approx([1, 1, 1, 1, 0.5, 0])
    assert rates(20, schedule="wsd")[-3:] == pytest.approx([1.0, 0.5, 0.0])
