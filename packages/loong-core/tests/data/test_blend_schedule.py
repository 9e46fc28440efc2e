"""Blends whose proportions change keep to them, and can be entered anywhere."""

import pytest

from loong_core.data.blend import Blend
from loong_core.data.blend_schedule import BlendPoint, ScheduledBlend


def turns(blend, first, last):
    return [blend.source_of(sample) for sample in range(first, last)]


def test_constant_proportions_give_the_order_of_a_plain_blend():
    assert turns(ScheduledBlend([BlendPoint(0, (3.0, 1.0, 2.0))]), 0, 3000) == turns(Blend([3.0, 1.0, 2.0]), 0, 3000)


def test_each_source_gives_its_draws_in_order_without_a_gap():
    blend = ScheduledBlend(
        [BlendPoint(100, (1.0, 0.0, 2.0)), BlendPoint(900, (0.2, 3.0, 0.0)), BlendPoint(1500, (1, 1, 1))]
    )
    seen = [0, 0, 0]
    for source, draw in turns(blend, 0, 40_000):
        assert draw == seen[source]
        seen[source] += 1


def test_every_stretch_has_the_share_that_the_schedule_gives_it():
    blend = ScheduledBlend([BlendPoint(0, (1.0, 0.0)), BlendPoint(10_000, (0.5, 0.5)), BlendPoint(20_000, (0.5, 0.5))])
    for first, share in ((0, 0.025), (4500, 0.25), (9000, 0.475), (15_000, 0.5), (30_000, 0.5)):
        given = sum(source for source, _ in turns(blend, first, first + 1000))
        assert given == pytest.approx(1000 * share, abs=2)


def test_a_source_that_runs_out_of_its_share_is_never_asked_again():
    blend = ScheduledBlend([BlendPoint(0, (1.0, 1.0)), BlendPoint(100, (0.0, 1.0))])
    assert all(source == 1 for source, _ in turns(blend, 101, 20_000))


def test_any_stretch_can_be_had_without_what_came_before():
    points = [BlendPoint(0, (1.0, 2.0)), BlendPoint(50_000, (5.0, 1.0))]
    whole = ScheduledBlend(points)
    line = turns(whole, 0, 45_000)
    for start in (0, 16_383, 16_384, 44_000):
        assert turns(ScheduledBlend(points), start, start + 500) == line[start : start + 500]


@pytest.mark.parametrize(
    "points",
    [
        [],
        [BlendPoint(5, (1.0,)), BlendPoint(5, (1.0,))],
        [BlendPoint(0, (0.0, 0.0))],
        [BlendPoint(0, (1.0, -1.0))],
        [BlendPoint(0, (1.0,)), BlendPoint(1, (1.0, 1.0))],
    ],
)
def test_a_schedule_that_makes_no_sense_is_refused(points):
    with pytest.raises(ValueError, match="blend"):
        ScheduledBlend(points)
