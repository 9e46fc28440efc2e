"""Noise levels are drawn as their formulas say, in any range; and what the sampler steps through."""

import math

import pytest
import torch

from loong_dit.flow.sampling import SamplerSettings, Wanted, draw_samples
from loong_dit.flow.timesteps import TimestepDistribution, sampling_levels, shifted
from loong_dit.packing import PatchForm

KINDS = {
    "uniform": TimestepDistribution(),
    "shifted": TimestepDistribution(shift=5.0),
    "logit normal": TimestepDistribution("logit_normal", 3.0, 0.5, 1.3),
    "cosine": TimestepDistribution("cosine"),
}


def drawn(levels, count=4000):
    return [levels.sigma((number + 0.5) / count) for number in range(count)]


@pytest.mark.parametrize("levels", KINDS.values(), ids=KINDS)
def test_the_share_below_a_level_is_that_of_the_draws(levels):
    draws = drawn(levels)
    assert draws == sorted(draws)
    assert 0 <= draws[0] < 0.05
    assert 0.95 < draws[-1] <= 1
    for level in (0.1, 0.5, 0.875, 0.9):
        below = sum(draw < level for draw in draws) / len(draws)
        assert levels.share_below(level) == pytest.approx(below, abs=1e-3)


def test_logit_normal_is_the_logistic_of_a_normal_number():
    levels = TimestepDistribution("logit_normal", mean=0.4, std=0.7)
    numbers = torch.tensor(drawn(levels), dtype=torch.float64).logit()
    assert float(numbers.mean()) == pytest.approx(0.4, abs=1e-3)
    assert float(numbers.std()) == pytest.approx(0.7, abs=5e-3)


@pytest.mark.parametrize("levels", KINDS.values(), ids=KINDS)
def test_a_range_cuts_the_distribution_and_changes_nothing_else(levels):
    from dataclasses import replace

    part = replace(levels, low=0.3, high=0.875)
    inside = [draw for draw in drawn(levels, 20000) if 0.3 <= draw <= 0.875]
    for share in (0.0, 0.25, 0.5, 0.9, 1.0):
        expected = inside[min(int(share * len(inside)), len(inside) - 1)]
        assert part.sigma(share) == pytest.approx(expected, abs=2e-3)


def test_wan_experts_meet_where_the_release_says():
    """With shift 5 the boundary 0.9 lies at 0.358 of 1000 descending steps, and 0.875 at 0.417."""
    levels = TimestepDistribution(shift=5.0)
    assert 1 - levels.share_below(0.9) == pytest.approx(0.358, abs=1e-3)
    assert 1 - levels.share_below(0.875) == pytest.approx(0.417, abs=1e-3)


def test_the_bell_counts_the_middle_most_and_all_levels_once_on_average():
    levels = TimestepDistribution(shift=5.0, weighting="bell")
    weights = [levels.weight(shifted(1 - step / 1000, 5.0)) for step in range(1000)]
    assert sum(weights) / 1000 == pytest.approx(1.0, abs=1e-9)
    assert levels.weight(0.5) == max(levels.weight(level / 100) for level in range(101))
    ratio = (math.exp(-0.02) - math.exp(-0.5)) / (1 - math.exp(-0.5))
    assert levels.weight(0.6) / levels.weight(0.5) == pytest.approx(ratio, rel=1e-6)


def test_euler_steps_along_the_true_velocity_end_at_the_data():
    """For one datum x the velocity at level s is (state - x) / s, and steps along it are exact."""
    form = PatchForm((1, 2, 2), channels_last=True)
    data = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(1))

    def say(batch):
        level = float(batch.timesteps[0]) / 1000
        state = form.latents(form_to_last(batch.patches), (2, 4, 4))
        return form.outputs((state - data) / level)

    def form_to_last(patches):
        return patches.unflatten(-1, (3, 4)).transpose(-1, -2).flatten(-2)

    settings = SamplerSettings(form, 3, steps=7, shift=3.0, guidance=1.0)
    (found,) = draw_samples(say, [Wanted((2, 4, 4), torch.zeros(1, 5))], torch.zeros(1, 5), settings)
    torch.testing.assert_close(found, data, rtol=1e-4, atol=1e-4)
    levels = sampling_levels(4, 3.0).tolist()
    assert levels[0] == 1
    assert levels[-1] == 0
    assert levels[2] == pytest.approx(0.75)
