"""Both readers give the same samples; what keeps lerobot's from reading is told."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from robot_toys import LENGTHS, TOP, WRIST, toy_dataset, toy_dataset_v21

from loong_core.errors import UserError
from loong_vla.data.lerobot_recordings import LerobotRecordings
from loong_vla.data.recordings import ACTION, STATE, Recordings
from loong_vla.data.samples import RobotSample, SampleSource
from loong_vla.data.statistics import Normaliser
from loong_vla.data.video import CorruptFrame

pytest.importorskip("lerobot.datasets.lerobot_dataset")


def samples(recordings: Recordings) -> list[Any]:
    """Every sample, in an order that jumps."""
    plain = {
        feature: Normaliser(np.zeros(width, np.float32), np.ones(width, np.float32))
        for feature, width in ((STATE, 4), (ACTION, 3))
    }
    source = SampleSource(recordings, {"one": TOP, "two": WRIST}, plain, np.arange(-1, 4), "robot")
    order = np.random.default_rng(2).permutation(sum(LENGTHS))
    return source.read([(int(place), number) for number, place in enumerate(order)])


@pytest.fixture(scope="module")
def v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_dataset(tmp_path_factory.mktemp("v3") / "toy")


@pytest.fixture(scope="module")
def v21(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_dataset_v21(tmp_path_factory.mktemp("v21") / "toy")


@pytest.mark.parametrize("version", ["v3", "v21"])
def test_samples_are_equal(version: str, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(version)
    before = sorted(str(file) for file in root.parent.rglob("*"))
    lerobots = LerobotRecordings(root)
    for own, theirs in zip(samples(Recordings(root)), samples(lerobots), strict=True):
        assert isinstance(own, RobotSample)
        assert isinstance(theirs, RobotSample)
        for name in ("state", "actions", "inside"):
            np.testing.assert_array_equal(getattr(own, name), getattr(theirs, name))
        assert own.pictures.keys() == theirs.pictures.keys()
        for camera, picture in own.pictures.items():
            np.testing.assert_array_equal(picture, theirs.pictures[camera])
        assert (own.task, own.number) == (theirs.task, theirs.number)
    lerobots.close()
    assert sorted(str(file) for file in root.parent.rglob("*")) == before


def test_a_run_may_change_from_one_to_the_other(v3: Path) -> None:
    assert Recordings(v3).digest == LerobotRecordings(v3).digest


def test_a_frame_that_lerobot_cannot_decode_is_told_in_its_place(tmp_path: Path) -> None:
    root = toy_dataset(tmp_path / "toy")
    next((root / "videos" / WRIST).rglob("*.mp4")).write_bytes(b"no video")
    found = samples(LerobotRecordings(root))
    assert all(isinstance(each, CorruptFrame) for each in found)
    assert "lerobot cannot read frame" in str(found[0])


def test_a_version_that_lerobot_does_not_take_is_told(tmp_path: Path) -> None:
    root = toy_dataset_v21(tmp_path / "toy")
    info = root / "meta" / "info.json"
    info.write_text(info.read_text().replace('"v2.1"', '"v2.0"'))
    with pytest.raises(UserError, match=r"has version v2.0 of the format, and lerobot's library takes v3.0 and v2.1"):
        LerobotRecordings(root)


def test_without_the_extra_the_message_names_it(v3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lerobot.datasets.lerobot_dataset", None)
    with pytest.raises(
        UserError, match=r"data.reader=lerobot needs lerobot's library .*pip install 'loong-vla\[lerobot\]'"
    ):
        LerobotRecordings(v3)
