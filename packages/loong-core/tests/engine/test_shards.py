"""Flat ranges of parameters as boxes of canonical tensors."""

from itertools import pairwise
from math import prod

import pytest
import torch

from loong_core.checkpoint.weight_map import Cut, Rule, Span, WeightMap
from loong_core.engine.shards import flat_boxes, fragments
from loong_core.parallel.context import Axis, ParallelContext
from loong_core.parallel.layout import Layout


@pytest.mark.parametrize("shape", [(5,), (3, 4), (2, 3, 4), (1, 5), (4, 1, 3)])
def test_any_range_of_a_row_major_array_is_a_few_boxes_in_order(shape):
    whole = torch.arange(prod(shape)).view(shape)
    for start in range(whole.numel()):
        for stop in range(start, whole.numel() + 1):
            boxes = list(flat_boxes(shape, start, stop))
            parts = [
                whole[tuple(slice(o, o + n) for o, n in zip(offsets, sizes, strict=True))].flatten()
                for offsets, sizes in boxes
            ]
            assert torch.cat([torch.empty(0, dtype=torch.int64), *parts]).tolist() == list(range(start, stop))
            assert len(boxes) <= 2 * len(shape) - 1


def placed(rank, size, rule):
    context = ParallelContext(Layout(tensor=size), torch.device("cpu"), tensor=Axis(None, rank, size))
    return WeightMap([rule]).placement(rule.ours, context)


@pytest.mark.parametrize(
    "rule",
    [
        Rule("fused", Span("a", (8, 3), Cut(0, 8)), Span("b", (4, 3), Cut(0, 4))),
        Rule("columns", Span("a", (3, 8), Cut(1, 8))),
        Rule("padded rows", Span("a", (5, 2), Cut(0, 5))),
        Rule("padded columns", Span("a", (2, 5), Cut(1, 5))),
    ],
    ids=lambda rule: rule.ours,
)
@pytest.mark.parametrize("owners", [1, 2, 3, 5])
def test_ranges_of_all_owners_and_tensor_ranks_cover_each_canonical_element_once(rule, owners):
    values = {span.name: torch.arange(prod(span.shape)).view(span.shape) for span in rule.spans}
    seen = {name: torch.zeros_like(value) for name, value in values.items()}
    for rank in range(2):
        placement = placed(rank, 2, rule)
        local = placement.to_local([values[piece.name][piece.slices] for piece in placement.pieces]).flatten()
        bounds = [round(owner * local.numel() / owners) for owner in range(owners + 1)]
        for start, stop in pairwise(bounds):
            for fragment in fragments(placement, start, stop):
                held = fragment.view(local[start:stop])
                assert torch.equal(held, values[fragment.piece.name][fragment.piece.slices])
                seen[fragment.piece.name][fragment.piece.slices] += 1
    assert all((counts == 1).all() for counts in seen.values())
