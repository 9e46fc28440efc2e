"""Plans deal out every sample once, keep to what sequences hold, and even out what data ranks have to do."""

import numpy as np
import pytest

from loong_core.data.packing import SecondBudget, best_fit
from loong_vlm.balance.cost import CostModel, features, imbalance
from loong_vlm.balance.plan import Item, Room, in_order, make_plan

MODEL = CostModel(token_pairs=1e-6, tokens=1e-2, samples=0.0, patch_pairs=1e-6, patches=1e-2)


def heavy_tailed(count, capacity, seed=0):
    rng = np.random.default_rng(seed)
    items = []
    for _ in range(count):
        sides = [int(rng.integers(2, 24)) * 2 for _ in range(rng.choice([0, 1, 3], p=[0.4, 0.4, 0.2]))]
        grids = [(1, side, side) for side in sides]
        text = int(np.clip(rng.lognormal(4, 1.5), 4, capacity // 2))
        places = text + sum(side * side // 4 for side in sides)
        if places <= capacity:
            items.append(Item(places, sum(side * side for side in sides), features(places, grids)))
    return items


def packed(items, room, multiple):
    second = None if room.patches is None else SecondBudget([item.patches for item in items], room.patches)
    sequences = best_fit([item.places for item in items], room.places, second)
    whole = len(sequences) // multiple * multiple
    kept = sequences[:whole]
    numbers = [item for sequence in kept for item in sequence]
    again = {old: new for new, old in enumerate(numbers)}
    return [items[old] for old in numbers], [[again[item] for item in sequence] for sequence in kept]


@pytest.mark.parametrize(("ranks", "micro_batch_size"), [(1, 1), (2, 1), (8, 1), (4, 2)])
def test_every_sample_is_dealt_out_once_and_no_sequence_is_over_full(ranks, micro_batch_size):
    room = Room(2048, 6000)
    items, sequences = packed(heavy_tailed(600, 2048), room, 8)
    plan = make_plan(items, sequences, ranks, room, MODEL, micro_batch_size)

    assert len({len(own) for own in plan.ranks}) == 1
    dealt = [item for own in plan.ranks for sequence in own for item in sequence]
    assert sorted(dealt) == list(range(len(items)))
    for own in plan.ranks:
        for sequence in own:
            assert sum(items[item].places for item in sequence) <= room.places
            assert sum(items[item].patches for item in sequence) <= room.patches


def test_a_heavy_tailed_batch_becomes_even():
    room = Room(2048, 6000)
    items, sequences = packed(heavy_tailed(800, 2048), room, 32)
    plan = make_plan(items, sequences[:32], 8, room, MODEL)
    costs = MODEL.cost(np.stack([item.features for item in items]))
    loads = np.array([sum(costs[item] for sequence in own for item in sequence) for own in plan.ranks])
    assert plan.before > 1.1
    assert plan.after < 1.03
    assert plan.after == pytest.approx(imbalance(loads))


@pytest.mark.parametrize("seed", range(4))
def test_sequences_that_are_packed_full_become_even_too(seed):
    room = Room(4096)
    items, sequences = packed(heavy_tailed(1500, 4096, seed), room, 16)
    chosen = np.random.default_rng(seed).permutation(len(sequences))[:16]
    kept = [sequences[number] for number in chosen]
    assert np.mean([sum(items[item].places for item in own) for own in kept]) > 0.999 * room.places
    plan = make_plan(items, kept, 8, room, MODEL)
    assert plan.before > 1.1
    assert plan.after < 1.05


def test_a_plan_depends_on_the_numbers_alone():
    room = Room(2048, 6000)
    items, sequences = packed(heavy_tailed(300, 2048), room, 8)
    assert make_plan(items, sequences, 4, room, MODEL) == make_plan(list(items), list(sequences), 4, room, MODEL)


def test_one_sample_that_outweighs_all_others_is_left_alone_with_its_rank():
    giant, dwarf = features(1000, [(1, 200, 200)]), features(10)
    items = [Item(1000, 40000, giant), *[Item(10, 0, dwarf)] * 7]
    plan = make_plan(items, [[number] for number in range(8)], 4, Room(1000), MODEL)
    assert plan.after <= plan.before
    assert sorted(len(own) for own in plan.ranks) == [2, 2, 2, 2]


def test_ranks_without_any_image_and_batches_without_any_are_dealt_out_too():
    texts = [Item(10 * n + 10, 0, features(10 * n + 10)) for n in range(8)]
    plan = make_plan(texts, [[number] for number in range(8)], 4, Room(100, 0), MODEL)
    assert plan.after < plan.before

    one_image = [*texts[:-1], Item(80, 400, features(80, [(1, 20, 20)]))]
    plan = make_plan(one_image, [[number] for number in range(8)], 4, Room(100, 400), MODEL)
    assert sum(any(one_image[item].patches for seq in own for item in seq) for own in plan.ranks) == 1


def test_a_video_costs_the_square_of_each_frame_not_of_all_together():
    assert features(10, [(8, 4, 4)]).tolist() == [100, 10, 1, 8 * 16**2, 8 * 16]


def test_without_balancing_microbatches_go_to_ranks_in_turn():
    assert in_order([[0], [1], [2], [3]], 2, 1) == [[[0], [2]], [[1], [3]]]
    assert in_order([[0], [1], [2], [3]], 2, 2) == [[[0], [1]], [[2], [3]]]
    with pytest.raises(ValueError, match="do not go evenly"):
        make_plan([Item(1, 0, features(1))] * 3, [[0], [1], [2]], 2, Room(10), MODEL)
