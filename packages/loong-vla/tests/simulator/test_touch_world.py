"""The world `touch`: its expert succeeds, idleness does not, and a policy is tried and filmed in it."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest

pytest.importorskip("pymunk")

from loong_vla.data.recordings import Recordings
from loong_vla.data.writer import write_dataset
from loong_vla.policy_runner import PolicyRunner
from loong_vla.simulator.demonstrations import demonstrate
from loong_vla.simulator.environment import make_environment
from loong_vla.simulator.small_policy import word_tokenizer, write_small_policy
from loong_vla.simulator.touch_world import CAMERA, SIZE, TouchWorld
from loong_vla.simulator.trial import try_policy


def test_the_expert_succeeds_in_at_least_95_of_100_episodes() -> None:
    episodes, rate = demonstrate(range(100))
    assert rate >= 0.95
    assert len(episodes) == round(100 * rate)


def test_who_does_nothing_fails_and_an_episode_is_decided_by_its_seed() -> None:
    first, second = make_environment("touch"), TouchWorld()
    seen, again = first.reset(7), second.reset(7)
    np.testing.assert_array_equal(seen.pictures[CAMERA], again.pictures[CAMERA])
    over, done, steps = False, True, 0
    while not over:
        _, over, done = first.step(np.zeros(2, np.float32))
        steps += 1
    assert (steps, done) == (TouchWorld.max_steps, False)


def test_the_target_is_seen_in_the_picture_only() -> None:
    world = TouchWorld()
    seen = world.reset(3)
    assert seen.pictures[CAMERA].shape == (SIZE, SIZE, 3)
    spread = seen.pictures[CAMERA].max(-1).astype(int) - seen.pictures[CAMERA].min(-1)
    assert (spread > 100).sum() > 20
    np.testing.assert_allclose(seen.state, np.array(world._gripper.position), rtol=1e-6)


def test_prompts_are_words_of_the_small_tokenizer() -> None:
    tokenizer = word_tokenizer()
    ids = tokenizer("Task: touch the red ball, State: 12 -1;\nAction: ")["input_ids"]
    assert tokenizer.unk_token_id not in ids
    assert len(ids) == 15


def test_demonstrations_become_a_dataset_and_a_policy_is_tried_and_filmed(tmp_path: Path) -> None:
    from policy_toys import toy_trained_folder

    from loong_vla.lerobot_folder.policy_folder import open_policy

    episodes, _ = demonstrate(range(4))
    write_dataset(tmp_path / "dataset", episodes, TouchWorld.fps, "touch")
    recordings = Recordings(tmp_path / "dataset")
    assert len(recordings) == sum(len(each.states) for each in episodes)
    assert recordings.task(0) == episodes[0].task
    write_small_policy(tmp_path / "policy")
    config = open_policy(tmp_path / "policy").config
    folder = toy_trained_folder(tmp_path / "trained", config)
    runner = PolicyRunner(folder, device="cpu")
    trial = try_policy(runner, TouchWorld, range(3), video=tmp_path / "trial.mp4", blank_pictures=True)
    assert len(trial.succeeded) == 3
    assert 0 <= trial.success_rate <= 1
    with av.open(str(tmp_path / "trial.mp4")) as container:
        frames = sum(1 for _ in container.decode(video=0))
    assert frames >= max(trial.steps) + 1
