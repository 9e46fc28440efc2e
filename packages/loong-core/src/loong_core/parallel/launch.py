"""Starting the ranks of one machine, and standing by them: what `--nproc N` does.

Ranks are processes of the same command, told their place by torchrun's variables (so torchrun, which also restarts
them, is a drop-in replacement). The launcher imports no torch: ranks start at once. A signal to it goes to every rank,
a rank that fails ends the others, and no rank outlives it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from types import FrameType
from typing import Any, NoReturn

from loong_core.errors import HangError
from loong_core.parallel.console_errors import ConsoleErrors
from loong_core.parallel.ranks import RankPlace, initialise_from_env, leave

__all__ = ["RankPlace", "die_with_parent", "initialise_from_env", "launch", "leave"]

GRACE_SECONDS = 5.0
"""How long ranks may go on after one has crashed."""

ORDERLY_SECONDS = 120.0
"""How long ranks may go on after one has ended in order: stopped by a signal with its state saved, or refused."""

_ORDERLY_STATUSES = {2, 3, 128 + signal.SIGINT, 128 + signal.SIGTERM}
_TAIL_LINES = 20


def launch(
    command: Sequence[str],
    nproc: int,
    *,
    log_dir: Path | None = None,
    environ: Mapping[str, str] | None = None,
    advice: Callable[[], str] | None = None,
    say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
) -> int:
    """Run `command` as `nproc` ranks of this machine and wait for all of them.

    Rank 0 keeps the console; the output of the others goes to `rank-N.log`. A traceback of rank 0 is held back until it
    is known whether it is the cause: where another rank was killed it goes to `rank-0.log` instead.
    SIGTERM and SIGINT are passed on to every rank, which is expected to save and end with 128 + N; a second SIGINT
    kills them. When a rank crashes the others get `GRACE_SECONDS` to notice by themselves and are then killed. Ranks
    get SIGTERM if this process dies.

    Args:
        command: argument vector; a rank knows that it is one by RANK in its environment.
        nproc: number of ranks.
        log_dir: folder for `rank-N.log`, created if missing; without one all ranks write to the console.
        environ: environment of the ranks, this process's by default. OMP_NUM_THREADS is set to an even share of the
            cores where the user has not set it.
        advice: what the user should do after a crash; asked for when it has happened.
        say: what tells the user that a rank failed.

    Returns:
        exit status of the command: 0 if every rank ended with 0, else that of the first rank to fail, 128 + N where
        signal N ended it.
    """
    if log_dir is not None:
        log_dir.mkdir(parents=True, exist_ok=True)
    places = _environments(nproc, os.environ if environ is None else environ)
    logs = [log_dir / f"rank-{rank}.log" if log_dir and rank else None for rank in range(nproc)]
    with _Watch(say, advice, ConsoleErrors(log_dir) if nproc > 1 else None) as watch:
        for place, log in zip(places, logs, strict=True):
            watch.start(command, place, log)
        return watch.wait()


def _environments(nproc: int, environ: Mapping[str, str]) -> list[dict[str, str]]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = dict(environ) | {
        "WORLD_SIZE": str(nproc),
        "LOCAL_WORLD_SIZE": str(nproc),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    shared.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // nproc)))
    shared.pop("PYTHONDONTWRITEBYTECODE", None)
    return [shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(nproc)]


def die_with_parent() -> None:
    """Have the kernel send SIGTERM to this (just forked) process when the one that forked it dies."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


@dataclass
class _Watch:
    """The started ranks, and what has happened to them."""

    say: Callable[[str], None]
    advice: Callable[[], str] | None = None
    errors: ConsoleErrors | None = None
    processes: list[subprocess.Popen] = field(default_factory=list)
    logs: list[Path | None] = field(default_factory=list)
    forwarded: Counter[int] = field(default_factory=Counter)
    first_failure: tuple[int, int] | None = None
    deadline: float | None = None
    _crash: tuple[int, int] | None = None
    _restore: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> _Watch:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._restore[number] = signal.signal(number, self._forward)
        # An interrupted select is resumed by Python; the wake-up pipe is what ends it when a signal has been handled.
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._restore_wakeup = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *exception: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        signal.set_wakeup_fd(self._restore_wakeup)
        os.close(self._wake_read)
        os.close(self._wake_write)
        for number, handler in self._restore.items():
            signal.signal(number, handler)
        if self.errors is not None:
            self.errors.close()

    def start(self, command: Sequence[str], environ: dict[str, str], log: Path | None) -> None:
        """Start the next rank, in a session of its own: the terminal's Ctrl-C then reaches the launcher alone."""
        with contextlib.ExitStack() as stack:
            output = stack.enter_context(log.open("a")) if log else None
            errors = self.errors.write_end if self.errors is not None and not self.processes else None
            self.processes.append(
                subprocess.Popen(
                    list(command),
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT if output else errors,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            )
            self.logs.append(log)

    def wait(self) -> int:
        """Wait until every rank has ended; the status to end with."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            handles = {os.pidfd_open(process.pid): rank for rank, process in enumerate(self.processes)}
            for handle in handles:
                selector.register(handle, selectors.EVENT_READ)
            if self.errors is not None:
                selector.register(self.errors.read_end, selectors.EVENT_READ)
            while handles:
                patience = None if self.deadline is None else max(0.0, self.deadline - monotonic())
                ready = selector.select(patience)
                if not ready and self.deadline is not None:
                    self._kill_stragglers()
                if self.errors is not None:
                    self.errors.read()
                if any(key.fd == self._wake_read for key, _ in ready):
                    os.read(self._wake_read, 4096)
                ended = [key.fd for key, _ in ready if key.fd in handles]
                for handle in ended:
                    selector.unregister(handle)
                    os.close(handle)
                # A rank that was killed is the cause of what the others that ended meanwhile ran into.
                ranks = [(self.processes[handles[handle]].wait(), handles.pop(handle)) for handle in ended]
                for status, rank in sorted(ranks, key=lambda each: not _was_killed(each[0])):
                    self._ended(rank, status)
        self._conclude()
        return self.first_failure[1] if self.first_failure else 0

    def _ended(self, rank: int, status: int) -> None:
        if status == 0:
            return
        orderly = status in _ORDERLY_STATUSES
        if self.first_failure is None:
            self.first_failure = (rank, status if status > 0 else 128 - status)
            if orderly and not self.forwarded:
                self._tell(rank, status, orderly)
            elif not orderly:
                self._crash = (rank, status)
        if not (orderly and self.forwarded):
            seconds = ORDERLY_SECONDS if orderly else GRACE_SECONDS
            self.deadline = min(self.deadline or float("inf"), monotonic() + seconds)

    def _tell(self, rank: int, status: int, orderly: bool) -> None:
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        log = self.logs[rank]
        if rank == 0 and orderly:
            return  # it has said why on the console
        if log is not None:
            tail = 3 * _TAIL_LINES if status == HangError.exit_status else _TAIL_LINES  # stacks of several ranks
            lines = log.read_text(errors="replace").splitlines()[-tail:]
            self.say(f"the end of {log}:\n" + "\n".join(f"  {line}" for line in lines))
        text = f"rank {rank} of {len(self.processes)} {how}"
        if status == -signal.SIGKILL:
            text += ", as the system does when memory runs out"
        if len(self.processes) > 1:
            text += "; the other ranks were ended too" if not orderly else ""
        self.say(text)

    def _conclude(self) -> None:
        """Once all have ended: what is held back, and as the last lines the cause of a crash and what to do."""
        if self.errors is not None:
            self.errors.read()
            self.errors.settle(is_cause=self._crash is None or self._crash[0] == 0 or not _was_killed(self._crash[1]))
        if self._crash is not None:
            if self._crash != (0, HangError.exit_status):  # rank 0 has said on the console which rank hangs
                self._tell(*self._crash, orderly=False)
            if self.advice is not None:
                self.say(self.advice())

    def _kill_stragglers(self) -> None:
        self.deadline = None
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                self.say(f"rank {rank} is killed: it went on after rank {(self.first_failure or (0, 0))[0]} had ended")
                process.kill()

    def _forward(self, number: int, frame: FrameType | None) -> None:
        self.forwarded[number] += 1
        final = number == signal.SIGINT and self.forwarded[number] > 1
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL if final else number)


def _was_killed(status: int) -> bool:
    """Whether a signal ended a rank that does not send itself one: communication libraries abort after an error."""
    return status < 0 and status != -signal.SIGABRT


def relaunch_as_ranks(nproc: int, log_dir: Path | None = None, advice: Callable[[], str] | None = None) -> NoReturn:
    """End this process with the status of its own command line, run as `nproc` ranks; `advice` is for a crash."""
    sys.exit(launch([sys.executable, *sys.orig_argv[1:]], nproc, log_dir=log_dir, advice=advice))
