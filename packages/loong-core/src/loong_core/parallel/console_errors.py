"""What rank 0 writes to stderr, passed on line by line, except a traceback that may only be the echo of a crash.

When a rank is killed the others fail in their next communication, and rank 0's traceback would bury the cause. From its
first line on it is held back until the launcher knows what happened.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_BEGINNING = b"Traceback (most recent call last)"


class ConsoleErrors:
    """A pipe from rank 0's stderr (`write_end`) to this process's.

    Args:
        log_dir: folder whose `rank-0.log` gets what the console does not; without one that is dropped.
    """

    def __init__(self, log_dir: Path | None) -> None:
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        self._log_dir = log_dir
        self._line = b""
        self._held: list[bytes] = []

    def read(self) -> None:
        """Pass on what has come, whole lines of it."""
        while True:
            try:
                arrived = os.read(self.read_end, 65536)
            except BlockingIOError:
                return
            if not arrived:
                return
            whole, newline, self._line = (self._line + arrived).rpartition(b"\n")
            for line in (whole + newline).splitlines(keepends=True):
                self._pass_on(line)

    def settle(self, *, is_cause: bool) -> None:
        """Everything has come: what was held back goes to the console if it is the cause, else to the log."""
        if self._line:
            self._pass_on(self._line)
        held, self._line, self._held = b"".join(self._held), b"", []
        if held and is_cause:
            _print(held)
        elif held and self._log_dir is not None:
            with (self._log_dir / "rank-0.log").open("ab") as log:
                log.write(held)

    def close(self) -> None:
        """Close the pipe."""
        os.close(self.read_end)
        os.close(self.write_end)

    def _pass_on(self, line: bytes) -> None:
        if self._held or _BEGINNING in line:
            self._held.append(line)
        else:
            _print(line)


def _print(text: bytes) -> None:
    print(text.decode(errors="replace"), end="", file=sys.stderr, flush=True)
