"""Costs are measured from steps of which only the slowest rank's time is known."""

import numpy as np
import pytest

from loong_vlm.balance.cost import CostModel, features
from loong_vlm.balance.fitting import MeasuredStep, fit

START = CostModel(token_pairs=1e-9, tokens=1e-5, samples=1e-5, patch_pairs=1e-9, patches=1e-6)
TRUTH = CostModel(token_pairs=3e-9, tokens=4e-5, samples=2e-4, patch_pairs=0.5e-9, patches=9e-6)


def random_batch(rng, ranks=4):
    def rank():
        total = np.zeros(5)
        for _ in range(rng.integers(4, 40)):
            side = int(rng.integers(4, 40))
            grids = [(1, side, side)] * int(rng.integers(0, 3))
            total += features(int(rng.lognormal(6, 1)) + side * side // 4 * len(grids), grids)
        return total

    return np.stack([rank() for _ in range(ranks)])


def measured(count, noise=0.01, seed=0):
    rng = np.random.default_rng(seed)
    batches = [random_batch(rng) for _ in range(count)]
    return [MeasuredStep(batch, float(TRUTH.cost(batch).max() * (1 + noise * rng.normal()))) for batch in batches]


def test_costs_of_new_batches_are_foretold_from_a_few_steps():
    model = fit(measured(20), START)
    rng = np.random.default_rng(1)
    for batch in (random_batch(rng) for _ in range(20)):
        assert model.cost(batch) == pytest.approx(TRUTH.cost(batch), rel=0.08)
    assert np.abs(START.cost(batch) / TRUTH.cost(batch) - 1).max() > 0.5


def test_exact_times_give_the_exact_slowest_rank():
    model = fit(measured(40, noise=0.0), START)
    rng = np.random.default_rng(2)
    batches = [random_batch(rng) for _ in range(20)]
    assert [model.cost(batch).argmax() for batch in batches] == [TRUTH.cost(batch).argmax() for batch in batches]


def test_what_the_steps_leave_open_stays_in_proportion_to_the_first_model():
    batch = random_batch(np.random.default_rng(3), ranks=1)
    model = fit([MeasuredStep(batch, float(START.cost(batch)[0]) * 7)] * 5, START)
    assert model.coefficients == pytest.approx(START.coefficients * 7, rel=1e-3)


def test_costs_are_never_negative():
    steps = [MeasuredStep(features(length)[None], 1.0 + 0.1 / length) for length in (10, 100, 1000)]
    assert (fit(steps, START).coefficients >= 0).all()


def test_steps_without_time_or_work_are_refused():
    for steps in ([], [MeasuredStep(features(10)[None], 0.0)], [MeasuredStep(np.zeros((2, 5)), 1.0)]):
        with pytest.raises(ValueError, match="must have taken time"):
            fit(steps, START)
    with pytest.raises(ValueError, match="not negative"):
        CostModel(1.0, 1.0, 1.0, 1.0, -1.0)


def test_shapes_give_operations_to_begin_with():
    model = CostModel.from_shapes(
        text_parameters=10, text_layers=2, text_attention_width=8, tower_parameters=3, tower_layers=1, tower_width=4
    )
    assert model == CostModel(token_pairs=96, tokens=60, samples=0, patch_pairs=48, patches=18)
