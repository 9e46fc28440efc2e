"""The line of samples: the same on any number of ranks, mixed as asked for, and whole but for what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robot_toys import TOP, damage, toy_dataset

from loong_core.errors import UserError
from loong_vla.data.recordings import ACTION, STATE, Recordings
from loong_vla.data.samples import RobotSample, SampleSource
from loong_vla.data.statistics import Normaliser, compute_statistics, pool_statistics, widened
from loong_vla.data.stream import RobotStream
from loong_vla.data.video import CorruptFrame


def source(root: Path, embodiment: str = "robot", cameras: tuple[str, ...] = (TOP,)) -> SampleSource:
    recordings = Recordings(root)
    normalisers = {
        feature: Normaliser(np.zeros(width, np.float32), np.ones(width, np.float32))
        for feature, width in ((STATE, 4), (ACTION, 3))
    }
    return SampleSource(recordings, {each: each for each in cameras}, normalisers, np.arange(4), embodiment)


def numbers(samples: Sequence[RobotSample]) -> list[tuple[int, str, float]]:
    return [(each.number, each.embodiment, float(each.state[0])) for each in samples]


def stream(sources: list[SampleSource], **choices: Any) -> RobotStream:
    given = {"global_batch_size": 4, "micro_batch_size": 1, "seed": 3} | choices
    return RobotStream(sources, given.pop("weights", None), numbers, **given)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_dataset(tmp_path_factory.mktemp("stream") / "toy")


def taken(one: RobotStream, steps: int) -> list[Any]:
    return [sample for _ in range(steps) for batch in one.next_step() for sample in batch]


def test_an_epoch_is_every_frame_once(toy: Path) -> None:
    states = [state for _, _, state in taken(stream([source(toy)]), 5)]
    assert len(states) == len(set(states)) == 20


def test_ranks_share_the_line_of_one_rank(toy: Path) -> None:
    alone = taken(stream([source(toy)]), 6)
    shares = [taken(stream([source(toy)], data_rank=rank, data_size=2), 6) for rank in range(2)]
    assert sorted(alone) == sorted(shares[0] + shares[1])


def test_a_position_is_gone_back_to_and_belongs_to_its_data(toy: Path) -> None:
    first, second = stream([source(toy)]), stream([source(toy)])
    taken(first, 3)
    second.load_state_dict(first.state_dict())
    assert taken(first, 4) == taken(second, 4)
    with pytest.raises(UserError, match="the training data are not those of the checkpoint"):
        stream([source(toy)], seed=4).load_state_dict(first.state_dict())


def test_datasets_are_mixed_by_their_weights(toy: Path) -> None:
    pair = [source(toy, "a"), source(toy, "b")]
    drawn = [embodiment for _, embodiment, _ in taken(stream(pair, weights=[3.0, 1.0]), 10)]
    assert drawn.count("a") == 30


def test_a_sample_that_cannot_be_read_stops_the_run_or_is_replaced_and_counted(tmp_path: Path) -> None:
    root = toy_dataset(tmp_path / "toy")
    damage(root)
    with pytest.raises(CorruptFrame, match=r"set data.corrupt_frames=skip"):
        taken(stream([source(root)]), 6)
    told: list[int] = []
    skipping = stream([source(root)], corrupt="skip", skipped=lambda error, count: told.append(count))
    assert len(taken(skipping, 5)) == 20
    assert told == list(range(1, skipping.left_out + 1))
    assert told


def test_statistics_are_exact_and_pool_as_if_computed_together() -> None:
    random = np.random.default_rng(0)
    first, second = random.standard_normal((40, 3)) * 2 + 1, random.standard_normal((60, 3))
    whole = compute_statistics(np.concatenate((first, second)))
    pooled = pool_statistics([compute_statistics(first), compute_statistics(second)])
    for name in ("mean", "std", "min", "max", "count"):
        np.testing.assert_allclose(pooled[name], whole[name], rtol=1e-12)
    np.testing.assert_allclose(compute_statistics(first)["q01"], np.quantile(first, 0.01, axis=0))


@pytest.mark.parametrize("mode", ["QUANTILES", "MEAN_STD", "MIN_MAX", "IDENTITY"])
def test_normalising_is_undone_and_numbers_that_never_change_become_zero(mode: str) -> None:
    values = np.random.default_rng(1).standard_normal((50, 3)).astype(np.float32)
    values[:, 1] = 5
    entry = widened(compute_statistics(values), mode)
    normaliser = Normaliser.of(entry, mode, 3)
    normalised = normaliser.normalise(values)
    np.testing.assert_allclose(normaliser.restore(normalised), values, rtol=1e-5, atol=1e-6)
    if mode != "IDENTITY":
        np.testing.assert_array_equal(normalised[:, 1], 0)
    if mode == "MIN_MAX":
        np.testing.assert_allclose(normalised[:, [0, 2]].min(0), -1, rtol=1e-5)
