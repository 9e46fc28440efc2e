"""Two packed sequences divided anew: as good as trying every way, and never over full."""

import itertools

import numpy as np
import pytest

from loong_vlm.balance import repartition
from loong_vlm.balance.repartition import divide_anew


def drawn(count, seed):
    rng = np.random.default_rng(seed)
    return tuple(rng.integers(1, most, count) for most in (1000, 50, 30))


def by_hand(first, second, sizes, room, wanted):
    """The least distance to the wanted cost, of all ways."""
    items, distances = [*first, *second], [abs(int(sizes[0][first].sum()) - wanted)]
    for count in range(len(items) + 1):
        for chosen in itertools.combinations(items, count):
            own, other = list(chosen), [item for item in items if item not in chosen]
            if all(
                size[part].sum() <= most for part in (own, other) for size, most in zip(sizes[1:], room, strict=True)
            ):
                distances.append(abs(int(sizes[0][own].sum()) - wanted))
    return min(distances)


@pytest.mark.parametrize("seed", range(6))
def test_no_way_to_share_the_samples_is_nearer_to_the_wanted_cost(seed):
    sizes = drawn(10, seed)
    first, second = [0, 2, 4, 6], [1, 3, 5, 7, 8, 9]
    room = tuple(int(max(size[first].sum(), size[second].sum())) for size in sizes[1:])
    wanted = float(sizes[0].sum()) / 2
    found = divide_anew(first, second, sizes, room, wanted)
    least = by_hand(first, second, sizes, room, wanted)
    if found is None:
        assert least == abs(int(sizes[0][first].sum()) - wanted)
        return
    assert sorted([*found.first, *found.second]) == list(range(10))
    assert found.cost == sizes[0][list(found.first)].sum()
    assert abs(found.cost - wanted) == least
    for part in (found.first, found.second):
        assert all(size[list(part)].sum() <= most for size, most in zip(sizes[1:], room, strict=True))


def test_full_sequences_change_samples_that_take_just_as_many_places():
    """A long sample of the one for three short ones of the other, which pairs of samples would not allow."""
    places = np.array([30, 70, 10, 10, 10, 70])
    sizes = places**2, places, np.zeros(6, np.int64)
    found = divide_anew([0, 1], [2, 3, 4, 5], sizes, (100, 0), 5200.0)
    assert sorted(found.first) in ([1, 2, 3, 4], [2, 3, 4, 5])


def test_with_too_many_ways_fewer_samples_are_free(monkeypatch):
    monkeypatch.setattr(repartition, "_WAYS", 64)
    sizes = drawn(30, 0)
    found = divide_anew(list(range(15)), list(range(15, 30)), sizes, (10_000, 10_000), float(sizes[0].sum()) / 2)
    assert sorted([*found.first, *found.second]) == list(range(30))
    assert sum(item < 15 for item in found.second) <= 3
