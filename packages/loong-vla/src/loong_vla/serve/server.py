"""The protocol of openpi's policy server: metadata on connecting, then an observation in and actions out, in turn.

An observation is a map: pictures under the policy's camera names (or openpi's short ones, such as `observation/top`),
`observation/state`, and `prompt`. The answer has `actions`, `[chunk, action width]`, and `server_timing`. What goes
wrong with an observation is answered as text, which openpi's client raises.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from loong_core.errors import UserError
from loong_vla.data.recordings import IMAGES, STATE
from loong_vla.policy_runner import PolicyRunner
from loong_vla.serve.messages import pack, unpack

MOST_BYTES = 64 * 2**20
"""Largest message that is taken."""


class PolicyServer:
    """Serves one policy; clients are answered one at a time.

    Args:
        runner: the policy.
        host: address to listen on.
        port: its port; 0 for any that is free.
    """

    def __init__(self, runner: PolicyRunner, host: str = "127.0.0.1", port: int = 8000) -> None:
        self.runner = runner
        self._busy = threading.Lock()
        self._server: Server = serve(self._talk, host, port, compression=None, max_size=MOST_BYTES)
        self.port: int = self._server.socket.getsockname()[1]

    def run(self) -> None:
        """Serve until `close`, or an interrupt."""
        self._server.serve_forever()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()

    def metadata(self) -> dict[str, Any]:
        """What a client is told on connecting."""
        config = self.runner.config
        return {
            "policy": config.kind,
            "cameras": list(config.cameras),
            "state_dim": len(self.runner.normalisers[STATE].offset),
            "action_dim": self.runner.action_dim,
            "action_horizon": config.chunk_size,
            "n_action_steps": config.n_action_steps,
        }

    def _talk(self, connection: ServerConnection) -> None:
        try:
            connection.send(pack(self.metadata()))
            for message in connection:
                begin = perf_counter()
                try:
                    if isinstance(message, str):
                        raise UserError("the message is text; observations are binary")
                    actions = self._answer(unpack(message))
                except UserError as error:
                    connection.send(str(error))
                    continue
                spent = {"infer_ms": (perf_counter() - begin) * 1000}
                connection.send(pack({"actions": actions, "server_timing": spent}))
        except ConnectionClosed:
            return

    def _answer(self, observation: Any) -> NDArray[np.float32]:
        if not isinstance(observation, Mapping):
            raise UserError(f"the message is a {type(observation).__name__}, not a map with an observation")
        observation = {key.decode() if isinstance(key, bytes) else key: each for key, each in observation.items()}
        pictures = {
            camera: _picture(observation[name], name)
            for camera in self.runner.config.cameras
            for name in _names_of(camera)
            if name in observation
        }
        state = next((observation[name] for name in (STATE, "observation/state", "state") if name in observation), None)
        if state is None:
            raise UserError(f"the observation has no observation/state; it has {', '.join(map(str, observation))}")
        try:
            state = np.asarray(state, np.float32).reshape(-1)
        except (TypeError, ValueError) as error:
            raise UserError(f"observation/state is not an array of numbers: {error}") from error
        prompt = observation.get("prompt", observation.get("task"))
        if not isinstance(prompt, str):
            raise UserError("the observation has no prompt")
        with self._busy:
            return self.runner.act([pictures], [state], [prompt])[0]


def _names_of(camera: str) -> tuple[str, ...]:
    """What a client may call a camera: lerobot's name, or openpi's of the same."""
    short = camera.removeprefix(f"{IMAGES}.")
    return camera, camera.replace(".", "/"), f"observation/{short}", short


def _picture(value: Any, name: str) -> NDArray[np.uint8]:
    """A picture as height, width, channels; openpi's clients may send channels first."""
    array = np.asarray(value)
    if array.ndim == 3 and array.shape[0] == 3 and array.shape[2] != 3:
        array = array.transpose(1, 2, 0)
    if array.ndim != 3 or array.shape[2] != 3 or array.dtype != np.uint8:
        raise UserError(f"{name} is {array.dtype} {list(array.shape)}, not a uint8 picture [height, width, 3]")
    return array
