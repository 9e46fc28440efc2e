"""The even split of layers among pipeline stages."""

from itertools import pairwise

import pytest

from loong_core.parallel.stage_split import LayerCosts, split_evenly, stages_of_ranks


def test_a_loss_worth_three_layers_leaves_the_last_stage_three_fewer():
    assert split_evenly(LayerCosts((1.0,) * 29, embedding=0.3, head=3.0), 4) == (8, 8, 8, 5)


def test_an_embedding_worth_a_layer_leaves_the_first_stage_one_fewer():
    assert split_evenly(LayerCosts((1.0,) * 14, embedding=1.0, head=1.0), 4) == (3, 4, 4, 3)


def test_a_loss_worth_more_than_a_stage_still_has_a_layer_beside_it():
    assert split_evenly(LayerCosts((1.0,) * 9, head=20.0), 3) == (4, 4, 1)


def test_dear_layers_are_fewer_on_a_stage():
    assert split_evenly(LayerCosts((1.0, 1.0, 1.0, 1.0, 4.0, 4.0)), 3) == (4, 1, 1)


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_no_other_split_has_a_cheaper_dearest_stage(stages):
    costs = LayerCosts((3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0), embedding=0.5, head=2.5)

    def dearest(sizes):
        bounds = [sum(sizes[:stage]) for stage in range(stages + 1)]
        amounts = [sum(costs.layers[start:stop]) for start, stop in pairwise(bounds)]
        amounts[0] += costs.embedding
        amounts[-1] += costs.head
        return max(amounts)

    def splits(layers, count):
        if count == 1:
            yield (layers,)
            return
        for first in range(1, layers - count + 2):
            yield from ((first, *rest) for rest in splits(layers - first, count - 1))

    assert dearest(split_evenly(costs, stages)) == min(map(dearest, splits(8, stages)))


def test_fewer_layers_than_stages_are_an_error():
    with pytest.raises(ValueError, match="3 stages for 2 layers"):
        split_evenly(LayerCosts.equal(2), 3)


def test_stages_are_dealt_round_the_ranks():
    assert stages_of_ranks([1, 2, 3, 4], 2) == [[range(0, 1), range(3, 6)], [range(1, 3), range(6, 10)]]
