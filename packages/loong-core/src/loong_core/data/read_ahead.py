"""Reading the next steps' data while the device works on this one's.

One thread calls the stream ahead of the loop and keeps with every step the position after it, so that a checkpoint
tells of what the loop has taken, not of what was read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol


class Steps(Protocol):
    """What is read ahead: a stream, or anything that gives steps and tells its position."""

    def next_step(self) -> Sequence[Any]:
        """The microbatches of the next step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position."""
        ...


class ReadAhead:
    """A stream whose next steps are read by a thread; the microbatches and positions are the stream's own.

    Args:
        stream: used by nobody else from now on.
        steps: how many to read ahead.
    """

    def __init__(self, stream: Steps, steps: int = 2) -> None:
        if steps < 1:
            raise ValueError(f"{steps} steps to read ahead; at least 1")
        self._stream = stream
        self._steps = steps
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="data")
        self._waiting: deque[Future[tuple[Sequence[Any], dict[str, Any]]]] = deque()
        self._position = stream.state_dict()

    def next_step(self) -> Sequence[Any]:
        """The microbatches of the next step.

        Raises:
            UserError: what the stream raised when it read them.
        """
        while len(self._waiting) <= self._steps:
            self._waiting.append(self._reader.submit(self._read))
        step, self._position = self._waiting.popleft().result()
        return step

    def state_dict(self) -> dict[str, Any]:
        """The position after the last step that was taken."""
        return self._position

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to a position; what was read ahead is dropped."""
        for unread in self._waiting:
            unread.cancel()
        self._waiting.clear()
        self._reader.submit(self._stream.load_state_dict, state).result()
        self._position = self._stream.state_dict()

    def close(self) -> None:
        """End the thread."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _read(self) -> tuple[Sequence[Any], dict[str, Any]]:
        step = self._stream.next_step()
        return step, self._stream.state_dict()
