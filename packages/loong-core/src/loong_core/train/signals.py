"""SIGTERM and SIGINT end a run at a step boundary, saved.

A handler only notes the signal, so that it lands nowhere in the middle of a step; the loop asks at each boundary and
all ranks agree, since a signal may reach only one of them. A second SIGINT ends the process at once.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType


class SignalWatch:
    """Notes SIGTERM and SIGINT while entered; `noted` is the signal's number, 0 for none. Main thread only."""

    def __init__(self) -> None:
        self.noted = 0
        self._interrupts = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> SignalWatch:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1:
            os._exit(128 + number)
        self.noted = self.noted or number
