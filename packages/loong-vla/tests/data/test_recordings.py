"""Datasets are read as they were recorded, whichever version of the format they are in, and as lerobot reads them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from robot_toys import FPS, LENGTHS, TOP, WRIST, damage, grey, toy_dataset, toy_dataset_v21, toy_episodes

from loong_core.errors import UserError
from loong_vla.data.recordings import ACTION, STATE, PictureRequest, Recordings, camera_map
from loong_vla.data.video import CorruptFrame


@pytest.fixture(scope="module")
def v3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_dataset(tmp_path_factory.mktemp("v3") / "toy")


@pytest.fixture(scope="module")
def v21(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_dataset_v21(tmp_path_factory.mktemp("v21") / "toy")


@pytest.fixture(params=["v3", "v21"])
def dataset(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


def all_requests(camera: str) -> list[PictureRequest]:
    return [PictureRequest(camera, n, frame) for n, length in enumerate(LENGTHS) for frame in range(length)]


def test_numbers_and_tasks_are_those_recorded(dataset: Path) -> None:
    recordings = Recordings(dataset)
    episodes = toy_episodes()
    np.testing.assert_array_equal(recordings.states, np.concatenate([each.states for each in episodes]))
    np.testing.assert_array_equal(recordings.actions, np.concatenate([each.actions for each in episodes]))
    told = [recordings.task(frame) for frame in range(len(recordings))]
    assert told == [each.task for each in episodes for _ in each.states]
    assert recordings.episode_of(0) == (0, 0)
    assert recordings.episode_of(7) == (1, 0)
    assert recordings.episode_of(20) == (2, 8)


@pytest.mark.parametrize("camera", [TOP, WRIST])
def test_every_picture_is_that_of_its_frame_in_whatever_order_it_is_asked_for(dataset: Path, camera: str) -> None:
    recordings = Recordings(dataset)
    requests = all_requests(camera)
    for order in (requests, requests[::-1], [requests[n] for n in np.random.default_rng(1).permutation(len(requests))]):
        for request, picture in zip(order, recordings.pictures(order), strict=True):
            assert not isinstance(picture, CorruptFrame)
            wanted = grey(request.episode, request.frame, [TOP, WRIST].index(camera))
            assert abs(float(picture.mean()) - wanted) < 2.5, request


def test_pictures_from_the_cache_are_those_decoded(v3: Path) -> None:
    requests = all_requests(TOP)
    plain, cached = Recordings(v3), Recordings(v3, cache_bytes=10**6)
    for _ in range(2):
        for first, second in zip(plain.pictures(requests), cached.pictures(requests), strict=True):
            np.testing.assert_array_equal(first, second)


def test_actions_beyond_an_episodes_ends_repeat_its_last_and_are_told_apart(dataset: Path) -> None:
    recordings = Recordings(dataset)
    actions, inside = recordings.chunk(5, np.arange(-6, 4))
    own = recordings.actions[:7]
    np.testing.assert_array_equal(actions, own[[0, 0, 1, 2, 3, 4, 5, 6, 6, 6]])
    assert inside.tolist() == [False] + [True] * 7 + [False] * 2


def test_times_of_actions_are_whole_frames(v3: Path) -> None:
    recordings = Recordings(v3)
    assert recordings.offsets([0.0, 0.2, -0.1], "data.action_times").tolist() == [0, 2, -1]
    with pytest.raises(UserError, match=r"data.action_times: \[0.15\] s are no multiples of a frame .* lasts 1/10 s"):
        recordings.offsets([0.0, 0.15], "data.action_times")


def test_lerobot_reads_what_we_write(v3: Path) -> None:
    LeRobotDataset = pytest.importorskip("lerobot.datasets.lerobot_dataset").LeRobotDataset

    times = [step / FPS for step in range(-1, 4)]
    theirs = LeRobotDataset("toy/toy", root=v3, delta_timestamps={"action": times}, video_backend="pyav")
    ours = Recordings(v3)
    offsets = ours.offsets(times, "data.action_times")
    assert len(theirs) == len(ours)
    for frame in (0, 6, 7, 13, 20):
        item, (episode, place) = theirs[frame], ours.episode_of(frame)
        actions, inside = ours.chunk(frame, offsets)
        np.testing.assert_array_equal(item["action"].numpy(), actions)
        np.testing.assert_array_equal(~item["action_is_pad"].numpy(), inside)
        np.testing.assert_array_equal(item[STATE].numpy(), ours.states[frame])
        assert item["task"] == ours.task(frame)
        (picture,) = ours.pictures([PictureRequest(TOP, episode, place)])
        np.testing.assert_array_equal((item[TOP].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8), picture)


@pytest.mark.parametrize("dtype", ["video", "image"])
def test_we_read_what_lerobot_writes(tmp_path: Path, dtype: str) -> None:
    LeRobotDataset = pytest.importorskip("lerobot.datasets.lerobot_dataset").LeRobotDataset

    features = {
        TOP: {"dtype": dtype, "shape": (32, 32, 3), "names": ["height", "width", "channels"]},
        STATE: {"dtype": "float32", "shape": (4,), "names": None},
        ACTION: {"dtype": "float32", "shape": (3,), "names": None},
    }
    theirs = LeRobotDataset.create("toy/toy", FPS, features, root=tmp_path / "toy", use_videos=dtype == "video")
    for each in toy_episodes(lengths=(4, 3)):
        for state, action, picture in zip(each.states, each.actions, each.pictures[TOP], strict=True):
            theirs.add_frame({STATE: state, ACTION: action, TOP: picture, "task": each.task})
        theirs.save_episode()
    theirs.finalize()
    ours = Recordings(tmp_path / "toy")
    read = LeRobotDataset("toy/toy", root=tmp_path / "toy", video_backend="pyav")
    for frame in range(7):
        episode, place = ours.episode_of(frame)
        (picture,) = ours.pictures([PictureRequest(TOP, episode, place)])
        item = read[frame]
        np.testing.assert_array_equal((item[TOP].permute(1, 2, 0).numpy() * 255).round().astype(np.uint8), picture)
        np.testing.assert_array_equal(item[STATE].numpy(), ours.states[frame])
        assert item["task"] == ours.task(frame)
    assert {"mean", "std", "q01", "q99"} <= set(ours.metadata.statistics[ACTION])


def test_cameras_are_matched_by_name_or_as_told(v3: Path) -> None:
    recordings = Recordings(v3)
    assert camera_map(recordings, [TOP, "other"], {}) == {TOP: TOP}
    assert camera_map(recordings, ["eye"], {"eye": WRIST}) == {"eye": WRIST}
    with pytest.raises(UserError, match=f"has none of the policy's cameras eye; it has {TOP}, {WRIST}: name them"):
        camera_map(recordings, ["eye"], {})
    with pytest.raises(UserError, match="has no camera nose"):
        camera_map(recordings, ["eye"], {"eye": "nose"})


def test_what_contradicts_itself_is_told(tmp_path: Path) -> None:
    root = toy_dataset(tmp_path / "toy")
    info = json.loads((root / "meta/info.json").read_text())
    (root / "meta/info.json").write_text(json.dumps(info | {"total_frames": 22}))
    with pytest.raises(UserError, match=r"its 3 episodes have 21 frames, but meta/info.json says total_frames 22"):
        Recordings(root)
    (root / "meta/info.json").write_text(json.dumps(info | {"codebase_version": "v1.6"}))
    with pytest.raises(UserError, match=r"codebase_version is 'v1.6'; v3.0, v2.1, v2.0 are read"):
        Recordings(root)
    info["features"][ACTION]["shape"] = [5]
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(UserError, match=r"action has 63 numbers in 21 frames, where meta/info.json says 5 each"):
        Recordings(root)
    with pytest.raises(UserError, match=r"is not a LeRobot dataset: it has no meta/info.json"):
        Recordings(tmp_path)


def test_a_video_that_ends_early_or_is_none_is_told_before_any_step(tmp_path: Path) -> None:
    from loong_vla.data.video_writer import write_video

    root = toy_dataset(tmp_path / "toy")
    video = next((root / "videos" / TOP).rglob("*.mp4"))
    write_video(video, toy_episodes()[0].pictures[TOP][:4], FPS)
    next((root / "videos" / WRIST).rglob("*.mp4")).write_bytes(b"no video")
    short, broken = Recordings(root).video_faults()
    assert "lasts 0.400 s, but the tables have a frame of observation.images.top at 2.000 s" in str(short)
    assert "cannot be opened as a video" in str(broken)
    video.unlink()
    assert "is missing" in str(Recordings(root).video_faults()[0])


def test_frames_that_cannot_be_decoded_are_told_in_their_place(tmp_path: Path) -> None:
    root = toy_dataset(tmp_path / "toy")
    damaged = damage(root)
    pictures = Recordings(root).pictures(all_requests(TOP))
    wrong = [isinstance(each, CorruptFrame) for each in pictures]
    assert any(wrong)
    assert not all(wrong)
    told = next(each for each in pictures if isinstance(each, CorruptFrame))
    assert str(damaged) in str(told)
