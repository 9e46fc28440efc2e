"""What is wrong with a run is told before its first step, with numbers, place and way out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from policy_toys import toy_policy_config, toy_policy_folder, toy_run, toy_trained_folder
from robot_toys import TOP, toy_dataset

from loong_core.config import load_run
from loong_core.errors import ConfigError, UserError
from loong_vla.check import check_run
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.policy_runner import PolicyRunner
from loong_vla.recipes.training_config import PolicyTrainingConfig
from loong_vla.simulator.environment import make_environment


def faults(folder: Path, **changes: Any) -> str:
    found = check_run(load_run(PolicyTrainingConfig, toy_run(folder, **changes)), 1)
    return "\n".join(map(str, found.faults))


def edit_statistics(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    toy_dataset(folder / "dataset")
    file = folder / "dataset/meta/stats.json"
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def test_a_sound_run_has_none(tmp_path: Path) -> None:
    assert faults(tmp_path) == ""


def test_a_camera_that_no_dataset_has(tmp_path: Path) -> None:
    toy_dataset(tmp_path / "dataset", cameras=(TOP,))
    told = faults(tmp_path)
    assert "data.train: no dataset has the policy's camera observation.images.wrist" in told
    assert "set data.missing_cameras=leave_out" in told
    assert faults(tmp_path, data__missing_cameras="leave_out") == ""


def test_actions_wider_than_the_policys(tmp_path: Path) -> None:
    toy_dataset(tmp_path / "dataset", action_dim=7)
    assert "has actions of 7 numbers, the policy takes 5 at most" in faults(tmp_path)


def test_statistics_that_are_absent(tmp_path: Path) -> None:
    edit_statistics(tmp_path, lambda values: [values[ACTION].pop(name) for name in ("q01", "q99")] and None)
    told = faults(tmp_path)
    assert "meta/stats.json has no q01, q99 of action, which QUANTILES normalises by" in told
    assert "run loong-vla stats" in told


def test_statistics_without_range(tmp_path: Path) -> None:
    def freeze(values: dict[str, Any]) -> None:
        values[STATE]["q99"][2] = values[STATE]["q01"][2]

    edit_statistics(tmp_path, freeze)
    assert "observation.state never changes in dimension [2]: zero range" in faults(tmp_path)
    assert faults(tmp_path, data__constant_dimensions="centre") == ""


def test_an_episode_shorter_than_the_horizon_is_a_warning(tmp_path: Path) -> None:
    toy_policy_folder(tmp_path / "policy", toy_policy_config(chunk_size=6))
    found = check_run(load_run(PolicyTrainingConfig, toy_run(tmp_path)), 1)
    assert found.faults == []
    assert "1 of 3 episodes are shorter than the horizon of 6 frames" in found.warnings[0]


def test_a_video_shorter_than_the_tables(tmp_path: Path) -> None:
    from robot_toys import toy_episodes

    from loong_vla.data.video_writer import write_video

    toy_dataset(tmp_path / "dataset")
    video = next((tmp_path / "dataset/videos" / TOP).rglob("*.mp4"))
    write_video(video, toy_episodes()[0].pictures[TOP][:4], 10)
    assert "lasts 0.400 s, but the tables have a frame" in faults(tmp_path)


def test_several_faults_are_told_at_once(tmp_path: Path) -> None:
    told = faults(
        tmp_path,
        data__train=[str(tmp_path / "nowhere")],
        train__global_batch_size=3,
        layout__tensor=2,
        tokenizer=str(tmp_path / "none"),
    )
    assert "layout" in told
    assert "none is no folder on this machine" in told
    told = faults(tmp_path, data__train=[str(tmp_path / "nowhere")], layout__context=2)
    assert "there is no file or folder" in told
    assert "layout.context" in told


def test_embodiments_of_unlike_widths_need_names_of_their_own(tmp_path: Path) -> None:
    toy_dataset(tmp_path / "dataset")
    toy_dataset(tmp_path / "other", action_dim=2)
    pair = [{"path": str(tmp_path / "dataset")}, {"path": str(tmp_path / "other")}]
    assert "have action of unlike widths (give them embodiments of their own)" in faults(tmp_path, data__train=pair)
    pair[1]["embodiment"] = "other"
    assert faults(tmp_path, data__train=pair) == ""


def test_an_embodiment_that_the_policy_does_not_know(tmp_path: Path) -> None:
    folder = toy_trained_folder(tmp_path / "policy")
    with pytest.raises(UserError, match="knows no 'arm'; it was trained on robot"):
        PolicyRunner(folder, device="cpu", embodiment="arm")


def test_a_world_that_there_is_not() -> None:
    with pytest.raises(UserError, match=r"no environment is called 'tuch'; did you mean touch\?"):
        make_environment("tuch")


def test_a_dataset_without_any_of_the_policys_cameras(tmp_path: Path) -> None:
    toy_policy_folder(tmp_path / "policy", toy_policy_config(cameras=("observation.images.eye",)))
    assert "has none of the policy's cameras observation.images.eye" in faults(tmp_path)
    renamed = [{"path": str(tmp_path / "dataset"), "cameras": {"observation.images.eye": TOP}}]
    assert faults(tmp_path, data__train=renamed) == ""


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="corrupt_frames"):
        raise ConfigError(load_run(PolicyTrainingConfig, toy_run(tmp_path, data__corrupt_frame="skip")).faults)
