"""The weights of a run's sources, fixed or changing with the steps, become shares of their stores."""

from dataclasses import dataclass

import pytest

from loong_core.data.blend_plan import WeightPoint, blend_of
from loong_core.data.blend_schedule import ScheduledBlend
from loong_core.errors import UserError


@dataclass
class Store:
    per_epoch: int


GROUPS = [[Store(30), Store(10)], [Store(5)]]


def given(blend, first, last, stores):
    return sum(blend.source_of(sample)[0] in stores for sample in range(first, last))


def test_a_sources_stores_divide_its_weight_by_their_sizes():
    assert blend_of(GROUPS, [1.0, 3.0], global_batch_size=4) == [0.75, 0.25, 3.0]
    assert blend_of(GROUPS, None, global_batch_size=4) == [30.0, 10.0, 5.0]


def test_weights_change_in_a_straight_line_between_steps_and_stay_before_and_after():
    points = [WeightPoint(100, (1.0, 0.0)), WeightPoint(200, (1.0, 1.0))]
    blend = blend_of(GROUPS, [1.0, 1.0], points, global_batch_size=10)
    assert isinstance(blend, ScheduledBlend)
    assert given(blend, 0, 100, {2}) == pytest.approx(50 * (1 + 0.9), abs=50)
    assert given(blend, 1000, 1100, {2}) <= 3
    assert given(blend, 1900, 2000, {2}) == pytest.approx(48, abs=2)
    assert given(blend, 5000, 6000, {2}) == pytest.approx(500, abs=2)
    assert given(blend, 5000, 6000, {0}) == pytest.approx(375, abs=2)


def test_a_schedule_from_step_0_needs_no_weights_of_the_sources():
    blend = blend_of(GROUPS, None, [WeightPoint(0, (0.0, 1.0)), WeightPoint(10, (1.0, 1.0))], global_batch_size=100)
    assert isinstance(blend, ScheduledBlend)
    assert given(blend, 0, 100, {0, 1}) == pytest.approx(2.5, abs=2)


def test_points_that_do_not_fit_the_sources_are_refused():
    with pytest.raises(UserError, match="every point needs 2 weights"):
        blend_of(GROUPS, [1.0, 1.0], [WeightPoint(0, (1.0,))], global_batch_size=1)
    with pytest.raises(UserError, match=r"data\.blend_schedule: a blend's schedule needs points of rising"):
        blend_of(GROUPS, [1.0, 1.0], [WeightPoint(5, (1.0, 1.0)), WeightPoint(5, (1.0, 1.0))], global_batch_size=1)
