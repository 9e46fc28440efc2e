"""What a rank's parameter is made of: boxes of Hugging Face tensors, joined and separated again."""

import dataclasses

import pytest
import torch

from loong_core.checkpoint.weight_map import Cut, Rule, Span, WeightMap
from loong_core.parallel.context import Axis, ParallelContext

QUERY = Span("h.{layer}.q.weight", (8, 3), Cut(0, 4, 2))
KEY = Span("h.{layer}.k.weight", (4, 3), Cut(0, 2, 2))
MAP = WeightMap(
    [
        Rule("table.weight", Span("embed.weight", (5, 3), Cut(0, 5))),
        Rule("layers.{layer}.query_key.weight", QUERY, KEY),
        Rule("layers.{layer}.down.weight", Span("h.{layer}.down.weight", (3, 6), Cut(1, 6))),
        Rule("layers.{layer}.fused.bias", Span("h.{layer}.qk.bias", (8,), Cut(0, 4, 1, start=4))),
        Rule("norm.weight", Span("norm.weight", (3,))),
    ]
)


def rank(number, size):
    return dataclasses.replace(ParallelContext.single(), tensor=Axis(None, number, size))


def boxes(name, number, size):
    return [(piece.name, piece.offsets, piece.sizes) for piece in MAP.placement(name, rank(number, size)).pieces]


def test_a_whole_parameter_is_its_spans_one_after_the_other():
    assert boxes("layers.7.query_key.weight", 0, 1) == [
        ("h.7.q.weight", (0, 0), (8, 3)),
        ("h.7.k.weight", (0, 0), (4, 3)),
    ]
    assert MAP.placement("layers.7.query_key.weight", rank(0, 1)).shape == (12, 3)


def test_ranks_divide_each_span_by_its_units():
    assert boxes("layers.0.query_key.weight", 1, 2) == [
        ("h.0.q.weight", (4, 0), (4, 3)),
        ("h.0.k.weight", (2, 0), (2, 3)),
    ]
    assert boxes("layers.0.down.weight", 1, 2) == [("h.0.down.weight", (0, 3), (3, 3))]


def test_a_span_may_begin_inside_its_tensor():
    assert boxes("layers.0.fused.bias", 1, 2) == [("h.0.qk.bias", (6,), (2,))]


def test_neighbouring_ranks_hold_the_same_unit_where_there_are_fewer_units():
    held = [piece.offsets for number in range(4) for piece in KEY.pieces(0, number, 4)]
    assert held == [(0, 0), (0, 0), (2, 0), (2, 0)]


GROUPED = WeightMap(
    [
        # Two groups, each of four queries and then a key, of two rows each.
        Rule("query.weight", Span("qk.weight", (20, 3), Cut(0, 8, 2, run=4, step=10))),
        Rule("key.weight", Span("qk.weight", (20, 3), Cut(0, 2, 2, start=8, run=1, step=10))),
    ]
)


def rows_of(name, number, size):
    return [
        row
        for piece in GROUPED.placement(name, rank(number, size)).pieces
        for row in range(piece.offsets[0], piece.offsets[0] + piece.sizes[0])
    ]


def test_units_may_lie_in_runs_with_others_between_them():
    assert rows_of("query.weight", 0, 1) == [*range(8), *range(10, 18)]
    assert rows_of("key.weight", 0, 1) == [8, 9, 18, 19]
    assert [rows_of("query.weight", number, 2) for number in range(2)] == [[*range(8)], [*range(10, 18)]]
    assert [rows_of("query.weight", number, 4) for number in range(4)] == [
        [*range(4)],
        [*range(4, 8)],
        [*range(10, 14)],
        [*range(14, 18)],
    ]
    assert [rows_of("key.weight", number, 4) for number in range(4)] == [[8, 9], [8, 9], [18, 19], [18, 19]]


def test_a_rank_whose_units_are_of_two_runs_has_them_one_after_the_other_and_pads_behind():
    held = [rows_of("query.weight", number, 3) for number in range(3)]
    assert held == [[*range(6)], [6, 7, 10, 11, 12, 13], [14, 15, 16, 17]]
    placement = GROUPED.placement("query.weight", rank(2, 3))
    local = placement.to_local([torch.ones(4, 3)])
    assert local.tolist() == [[1] * 3] * 4 + [[0] * 3] * 2
    middle = GROUPED.placement("query.weight", rank(1, 3))
    assert middle.rooms == ((2, 3), (4, 3))
    parts = [torch.arange(6.0).view(2, 3), torch.arange(12.0).view(4, 3)]
    assert all(map(torch.equal, parts, middle.from_local(middle.to_local(parts))))


def test_the_last_ranks_pad_where_the_degree_does_not_divide():
    assert [boxes("table.weight", number, 3)[0][1:] for number in range(3)] == [
        ((0, 0), (2, 3)),
        ((2, 0), (2, 3)),
        ((4, 0), (1, 3)),
    ]
    placement = MAP.placement("table.weight", rank(2, 3))
    local = placement.to_local([torch.ones(1, 3)])
    assert local.tolist() == [[1, 1, 1], [0, 0, 0]]
    assert placement.from_local(local)[0].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.int64])
def test_joining_and_separating_are_inverse_for_any_dtype(dtype):
    placement = MAP.placement("layers.0.query_key.weight", rank(0, 2))
    parts = [torch.arange(12).reshape(4, 3).to(dtype), torch.arange(6).reshape(2, 3).to(dtype)]
    local = placement.to_local(parts)
    assert (local.shape, local.dtype) == (placement.shape, dtype)
    for part, back in zip(parts, placement.from_local(local), strict=True):
        assert torch.equal(part, back)


def test_what_is_separated_are_views():
    placement = MAP.placement("layers.0.query_key.weight", rank(0, 1))
    local = torch.zeros(placement.shape)
    placement.from_local(local)[1].fill_(1.0)
    assert local.sum() == 12


def test_one_of_the_ranks_that_hold_the_same_writes_it():
    assert [MAP.placement("norm.weight", rank(number, 2)).writes for number in range(2)] == [True, False]
    assert all(MAP.placement("table.weight", rank(number, 2)).writes for number in range(2))


def test_a_parameter_of_another_shape_is_refused():
    with pytest.raises(ValueError, match=r"norm\.weight is \[4\] here, the weight map makes it \[3\]"):
        MAP.placement("norm.weight", rank(0, 1)).from_local(torch.zeros(4))


def test_a_parameter_without_a_rule_brings_the_nearest():
    with pytest.raises(KeyError, match=r"layers\.3\.dwn\.weight; the nearest is for layers\.\{layer\}\.down\.weight"):
        MAP.placement("layers.3.dwn.weight", rank(0, 1))


def test_all_tensors_of_a_model_are_listed_with_their_shapes():
    found = MAP.tensors(2)
    assert found["h.1.q.weight"] == (8, 3)
    assert len(found) == 2 + 2 * 4
