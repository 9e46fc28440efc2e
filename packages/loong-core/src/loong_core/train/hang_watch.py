"""Ends a run whose ranks have stopped getting on, and says which of them is to blame.

Each rank marks what it begins. A thread of each writes the last mark and the main thread's stack to a small file, its
pulse, every few seconds. A rank that has made no mark for the timeout reads all pulses: while any of them still shows
new marks that rank is slow, and is waited for; when none does, the run hangs. Whoever finds that writes the verdict
where all ranks see it, and all end. Files serve where communication is what hangs: every rank sees the run folder, and
a stopped process leaves its last pulse there. (Communication's own timeouts name the ranks that wait, not the one that
they wait for.)
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any

from torch import Tensor, nn

from loong_core.engine.base import ForwardStep, LossTerms
from loong_core.errors import HangError
from loong_core.json_text import parse_json
from loong_core.parallel.crew import Crew

_LONGEST_BEAT = 15.0
_BEATS_TO_JUDGE = 3
_STACK_FRAMES = 12
_WAITING = ("torch/distributed/", "megatron/core/pipeline_parallel/", "loong_core/parallel/")
"""Where a main thread is while it waits for other ranks."""


@dataclass(frozen=True)
class Pulse:
    """What a rank last said of itself.

    Attributes:
        rank: which it is.
        host, pid: where it is.
        beat: how often it has said something.
        marks: how many things it has begun.
        step: the step it is in, 0 before the first.
        doing: what it began last.
        stack: of its main thread, the innermost call last.
        waits: whether that is in communication with other ranks.
    """

    rank: int
    host: str
    pid: int
    beat: int
    marks: int
    step: int
    doing: str
    stack: str
    waits: bool

    @property
    def place(self) -> str:
        """Where in its work it is."""
        return f"step {self.step}, {self.doing}"


@dataclass(frozen=True)
class Verdict:
    """What all ranks end with: what to say, and the rank that says it to the user, the first that answers."""

    text: str
    speaker: int


class HangWatch:
    """Watches while entered. Entering is collective.

    Args:
        logs: the run's `logs/`, seen by all ranks.
        timeout: seconds without a mark anywhere after which the run is ended; None: it never is.
        say: tells the user, on the rank that speaks.
        end: ends the process with a status.
    """

    def __init__(
        self,
        logs: Path,
        timeout: float | None,
        *,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
        end: Callable[[int], Any] = os._exit,
    ) -> None:
        crew = Crew()
        self._logs, self._rank, self._size = logs, crew.rank, crew.size
        self._timeout = timeout
        self._say, self._end = say, end
        self._main = threading.get_ident()
        self._step, self._doing, self._marks, self._since = 0, "beginning", 0, monotonic()
        self._beat = 0
        self._seen: list[dict[int, Pulse]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> HangWatch:
        if self._timeout is None:
            return self
        if self._rank == 0:
            for old in self._logs.glob("pulse-*"):
                shutil.rmtree(old, ignore_errors=True)
        self._folder = self._logs / f"pulse-{Crew().from_first(secrets.token_hex(4))}"
        self._folder.mkdir(parents=True, exist_ok=True)
        self.mark(0, "beginning")
        self._write_pulse()
        self._thread = threading.Thread(target=self._watch, args=(self._timeout,), name="hang watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            shutil.rmtree(self._folder, ignore_errors=True)

    def mark(self, step: int | None, doing: str) -> None:
        """This rank begins something; `step` None: within the same step."""
        if step is not None:
            self._step = step
        self._doing, self._since = doing, monotonic()
        self._marks += 1

    def forward_step(self, forward_step: ForwardStep) -> ForwardStep:
        """The same forward, marking each microbatch."""

        def marked(model: nn.Module, batch: Any, hidden: Tensor | None) -> LossTerms | Tensor:
            self.mark(None, "computing a microbatch")
            return forward_step(model, batch, hidden)

        return marked

    def _watch(self, timeout: float) -> None:
        """In the thread: a pulse, and a look at the others where this rank does not get on."""
        beat = min(_LONGEST_BEAT, timeout / 8)
        while not self._stop.wait(beat):
            own = self._write_pulse()
            told = self._folder / "verdict.json"
            with contextlib.suppress(OSError, ValueError):
                self._conclude(own, Verdict(**parse_json(told.read_text(encoding="utf-8"))))
                return
            if monotonic() - self._since < timeout:
                self._seen = []
                continue
            self._seen.append(self._pulses())
            if len(self._seen) < _BEATS_TO_JUDGE:
                continue
            first, last = self._seen[0], self._seen[-1]
            if any(rank not in first or first[rank].marks != pulse.marks for rank, pulse in last.items()):
                self._seen = [last]  # someone gets on, slowly
                continue
            if self._stop.is_set():
                return
            verdict = judged(first, last, self._size, timeout)
            _replace(told, json.dumps(asdict(verdict)))
            self._stop.wait(2 * beat)  # the others read it meanwhile, instead of seeing this rank go
            self._conclude(own, verdict)
            return

    def _conclude(self, own: Pulse, verdict: Verdict) -> None:
        """Tell, and end this process."""
        speaks = self._rank == verdict.speaker
        with contextlib.suppress(OSError), (self._logs / f"rank-{self._rank}.log").open("a", encoding="utf-8") as log:
            log.write(f"this rank was in {own.place}, at\n{own.stack}\n")
            if self._rank == 0 or not speaks:  # what other ranks say lands in their logs by itself
                log.write(f"error: {verdict.text}\n")
        if speaks:
            self._say(f"error: {verdict.text}")
        self._end(HangError.exit_status)

    def _write_pulse(self) -> Pulse:
        frame = sys._current_frames().get(self._main)
        stack = _frames(frame)
        self._beat += 1
        pulse = Pulse(
            self._rank,
            socket.gethostname(),
            os.getpid(),
            self._beat,
            self._marks,
            self._step,
            self._doing,
            "".join(traceback.format_list(stack)).rstrip(),
            any(part in stack[-1].filename for part in _WAITING) if stack else False,
        )
        _replace(self._pulse_file(self._rank), json.dumps(asdict(pulse)))
        return pulse

    def _pulse_file(self, rank: int) -> Path:
        return self._folder / f"rank-{rank}.json"

    def _pulses(self) -> dict[int, Pulse]:
        """Every rank's last pulse; ranks without one are left out."""
        found = {}
        for rank in range(self._size):
            with contextlib.suppress(OSError, ValueError, TypeError):
                found[rank] = Pulse(**parse_json(self._pulse_file(rank).read_text(encoding="utf-8")))
        return found


def judged(first: dict[int, Pulse], last: dict[int, Pulse], size: int, timeout: float) -> Verdict:
    """Which ranks of a run that hangs are to blame, with their last step and stack.

    Those that give no pulse any more; else those that are not waiting for others; else those that have begun least.

    Args:
        first: every rank's pulse at one time.
        last: the same some beats later.
        size: number of ranks.
        timeout: seconds in which nothing happened.
    """
    silent = [rank for rank in range(size) if rank not in last or (rank in first and last[rank] == first[rank])]
    answering = {rank: pulse for rank, pulse in last.items() if rank not in silent}
    busy = [rank for rank, pulse in answering.items() if not pulse.waits]
    least = min(((pulse.step, pulse.marks) for pulse in answering.values()), default=(0, 0))
    behind = [rank for rank, pulse in answering.items() if (pulse.step, pulse.marks) == least]
    if silent:
        blamed, why = silent, "does not answer: it is stopped, or its machine is gone"
    elif 0 < len(busy) < size:
        blamed, why = busy, "does not get on, and waits for no other"
    else:
        blamed, why = behind, "is the furthest behind"
    lines = [f"the run hangs: no rank has got on for {timeout:g} seconds"]
    for rank in blamed:
        pulse = last.get(rank)
        if pulse is None:
            lines.append(f"rank {rank} has never given a sign")
            continue
        lines.append(f"rank {rank} ({pulse.host}, process {pulse.pid}) {why}; it was in {pulse.place}, at")
        lines.append(pulse.stack)
    places: dict[str, list[str]] = {}
    for rank, pulse in last.items():
        if rank not in blamed:
            places.setdefault(pulse.place, []).append(str(rank))
    lines += [f"rank {', '.join(ranks)}: {place}" for place, ranks in places.items()]
    lines.append("All ranks end. If nothing is wrong and a step may take so long, raise train.hang_timeout")
    return Verdict("\n".join(lines), min(answering, default=0))


def _frames(frame: FrameType | None) -> list[traceback.FrameSummary]:
    """The innermost calls of a thread, the last of them the innermost."""
    return [] if frame is None else traceback.extract_stack(frame)[-_STACK_FRAMES:]


def _replace(path: Path, text: str) -> None:
    """Write a small file in one step; a disk that is full must not end the watch."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
