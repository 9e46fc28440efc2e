"""openpi's own client talks to the policy server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from openpi_client.websocket_client_policy import WebsocketClientPolicy
from policy_toys import toy_groot_config, toy_trained_folder, toy_trained_groot
from robot_toys import TOP, WRIST

from loong_core.errors import UserError
from loong_vla.policy_runner import PolicyRunner
from loong_vla.serve.messages import pack, unpack
from loong_vla.serve.server import PolicyServer


@contextmanager
def serving(folder: Path) -> Iterator[PolicyServer]:
    """A policy that is served while the block lasts."""
    running = PolicyServer(PolicyRunner(folder, device="cpu"), port=0)
    thread = threading.Thread(target=running.run)
    thread.start()
    yield running
    running.close()
    thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PolicyServer]:
    with serving(toy_trained_folder(tmp_path_factory.mktemp("policy") / "pretrained_model")) as running:
        yield running


@pytest.fixture
def client(server: PolicyServer) -> WebsocketClientPolicy:
    return WebsocketClientPolicy("127.0.0.1", server.port)


def observation() -> dict[str, object]:
    random = np.random.default_rng(0)
    picture = random.integers(0, 256, (32, 32, 3), np.uint8)
    return {
        "observation/top": picture,
        WRIST: picture.transpose(2, 0, 1),
        "observation/state": random.standard_normal(4),
        "prompt": "task 0",
    }


def test_the_client_is_told_whom_it_talks_to(client: WebsocketClientPolicy) -> None:
    told = client.get_server_metadata()
    assert told["policy"] == "pi05"
    assert told["cameras"] == [TOP, WRIST]
    assert (told["action_horizon"], told["action_dim"], told["state_dim"]) == (4, 3, 4)


def test_groot_is_served_too_as_the_first_of_its_robots(tmp_path: Path) -> None:
    config = toy_groot_config().for_embodiments(["arm"])
    with serving(toy_trained_groot(tmp_path / "pretrained_model", config)) as running:
        talking = WebsocketClientPolicy("127.0.0.1", running.port)
        told, answer = talking.get_server_metadata(), talking.infer(observation())
    assert (told["policy"], told["action_horizon"], told["n_action_steps"]) == ("groot", 4, 2)
    assert answer["actions"].shape == (4, 3)
    assert np.isfinite(answer["actions"]).all()


def test_an_observation_is_answered_with_actions_in_the_robots_units(
    client: WebsocketClientPolicy, server: PolicyServer
) -> None:
    answer = client.infer(observation())
    assert answer["actions"].shape == (4, 3)
    assert answer["actions"].dtype == np.float32
    assert answer["server_timing"]["infer_ms"] > 0
    offsets = server.runner.normalisers["action"].offset
    assert np.abs(answer["actions"] - offsets).max() < 100


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"observation/state": np.zeros(5)}, "state has 5 numbers, the policy was trained on 4"),
        ({"observation/top": np.zeros((32, 32), np.uint8)}, r"not a uint8 picture \[height, width, 3\]"),
        ({"prompt": None}, "the observation has no prompt"),
    ],
)
def test_what_does_not_fit_is_told_to_the_client_who_may_go_on(
    client: WebsocketClientPolicy, change: dict[str, object], told: str
) -> None:
    with pytest.raises(RuntimeError, match=told):
        client.infer(observation() | change)
    assert client.infer(observation())["actions"].shape == (4, 3)


def test_an_observation_without_any_camera_is_refused(client: WebsocketClientPolicy) -> None:
    blind = {name: value for name, value in observation().items() if name not in ("observation/top", WRIST)}
    with pytest.raises(RuntimeError, match="none of the policy's cameras"):
        client.infer(blind)


def test_messages_hold_numbers_and_texts_only() -> None:
    sent = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": np.float32(2), "c": ["text", 1]}
    read = unpack(pack(sent))
    np.testing.assert_array_equal(read["a"], sent["a"])
    assert read["b"] == 2
    assert read["c"] == ["text", 1]
    with pytest.raises(TypeError, match="has no place in a message"):
        pack({"a": np.array([object()])})
    with pytest.raises(UserError, match="is not msgpack with arrays"):
        unpack(pack({b"__ndarray__": True, b"data": b"12345678", b"dtype": "|O", b"shape": [1]}))
