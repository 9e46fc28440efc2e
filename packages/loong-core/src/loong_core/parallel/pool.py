"""Ranks that stay alive between calls, for tests of what ranks do together.

Starting ranks costs seconds of imports, joining them milliseconds: a pool starts each process once and makes its ranks
join anew for every call, in a world of the size asked for. Communication is gloo, on the host.
"""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from time import monotonic
from typing import Any

from loong_core.parallel.launch import die_with_parent

_STRAGGLER_SECONDS = 3.0


class RankError(AssertionError):
    """A rank of a pool failed; the message holds its traceback."""


@dataclass
class _Rank:
    process: subprocess.Popen
    pipe: Connection
    log: Path

    def stop(self) -> None:
        self.pipe.close()
        self.process.kill()
        self.process.wait()

    @property
    def log_tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


class RankPool:
    """Up to `ranks` processes, started when first needed, each with one thread for arithmetic.

    A function to run is given by reference, so it is a top-level one; its module is loaded from its file where its
    name cannot be imported (as pytest names test modules). Arguments and results travel by pickle.
    """

    def __init__(self, ranks: int = 8) -> None:
        self.ranks = ranks
        self._started: list[_Rank] = []
        self._folder = tempfile.TemporaryDirectory(prefix="loong-ranks-")
        self._calls = 0

    def run(self, world_size: int, function: Callable[..., Any], *args: Any, timeout: float = 120.0) -> list[Any]:
        """Call `function(*args)` on ranks `0..world_size-1`, joined in torch's default group; results in rank order.

        Raises:
            RankError: a rank raised (the message holds every failed rank's traceback), ended, or took longer than
                `timeout` seconds. Ranks that do not answer soon after another has failed are ended and started anew
                for the next call.
        """
        __tracebackhide__ = True
        if world_size > self.ranks:
            raise ValueError(f"{world_size} ranks asked of a pool of {self.ranks}")
        while len(self._started) < world_size:
            self._started.append(self._start(len(self._started)))
        self._calls += 1
        meeting_place = str(Path(self._folder.name) / f"call-{self._calls}")
        module = sys.modules[function.__module__]
        where = (function.__module__, getattr(module, "__file__", None), function.__qualname__)
        for rank, started in enumerate(self._started[:world_size]):
            started.pipe.send_bytes(pickle.dumps((rank, world_size, meeting_place, where, _pack(args))))
        return self._collect(world_size, timeout)

    def _collect(self, world_size: int, timeout: float) -> list[Any]:
        __tracebackhide__ = True  # pytest then shows the test's line and the rank's traceback
        results: dict[int, Any] = {}
        failures: dict[int, str] = {}
        waiting = {started.pipe: rank for rank, started in enumerate(self._started[:world_size])}
        deadline = monotonic() + timeout
        while waiting and (ready := wait(list(waiting), max(0.0, deadline - monotonic()))):
            for pipe in ready:
                rank = waiting.pop(pipe)  # type: ignore[arg-type]
                try:
                    succeeded, value = _unpack(self._started[rank].pipe.recv_bytes())
                except EOFError:
                    status = self._started[rank].process.wait()
                    succeeded, value = False, f"its process ended with {status}\n{self._started[rank].log_tail}"
                if succeeded:
                    results[rank] = value
                else:
                    failures[rank] = value
                    deadline = min(deadline, monotonic() + _STRAGGLER_SECONDS)
        for rank in waiting.values():
            failures.setdefault(rank, f"gave no answer\n{self._started[rank].log_tail}")
        if not failures:
            return [results[rank] for rank in range(world_size)]
        if waiting or any(started.process.poll() is not None for started in self._started):
            self.close()
        raise RankError("\n".join(f"rank {rank} of {world_size}: {failures[rank]}" for rank in sorted(failures)))

    def _start(self, rank: int) -> _Rank:
        ours, theirs = Pipe()
        log = Path(self._folder.name) / f"rank-{rank}.log"
        environ = dict(os.environ, OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
        environ.pop("PYTHONDONTWRITEBYTECODE", None)
        with log.open("w") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "loong_core.parallel.pool", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environ,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        theirs.close()
        return _Rank(process, ours, log)

    def close(self) -> None:
        """End the processes; a later `run` starts new ones."""
        for started in self._started:
            started.stop()
        self._started.clear()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
        self._folder.cleanup()


def _pack(value: object) -> bytes:
    """By torch's pickler: megatron-core replaces how plain pickle loads tensors, so the reader would import it."""
    import torch

    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _unpack(packed: bytes) -> Any:
    import torch

    return torch.load(io.BytesIO(packed), weights_only=False)


def _serve(pipe: Connection) -> None:
    """One rank: answer calls until the pool is gone."""
    import torch

    torch.set_num_threads(1)
    while True:
        try:
            call = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            answer = _pack((True, _call(*call)))
        except BaseException:
            answer = _pack((False, traceback.format_exc()))
        pipe.send_bytes(answer)


def _call(
    rank: int, world_size: int, meeting_place: str, where: tuple[str, str | None, str], arguments: bytes
) -> object:
    """Join the world of this call, run the function, leave."""
    import gc
    from datetime import timedelta

    import torch.distributed as dist

    function = _find(*where)
    os.environ.update(
        RANK=str(rank),
        WORLD_SIZE=str(world_size),
        LOCAL_RANK=str(rank),
        LOCAL_WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="0",
    )
    store = dist.FileStore(meeting_place, world_size)  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=60))
    try:
        return function(*_unpack(arguments))
    finally:
        gc.collect()  # what the call leaves in cycles holds process groups, and these their threads
        dist.destroy_process_group()


def _find(module_name: str, file: str | None, qualified_name: str) -> Callable[..., Any]:
    """The function of that name, its module loaded from `file` where it cannot be imported by name."""
    import importlib
    import importlib.util

    if module_name == "__main__":
        module_name = "main_of_pool"  # the script that made the pool; `__main__` is this module here
    if module_name not in sys.modules:
        try:
            importlib.import_module(module_name)
        except ModuleNotFoundError:
            spec = importlib.util.spec_from_file_location(module_name, file) if file else None
            if spec is None or spec.loader is None:
                raise
            module = importlib.util.module_from_spec(spec)
            sys.modules[module_name] = module
            spec.loader.exec_module(module)
    found: Any = sys.modules[module_name]
    for part in qualified_name.split("."):
        found = getattr(found, part)
    return found


if __name__ == "__main__":
    sys.dont_write_bytecode = False
    _serve(Connection(int(sys.argv[1])))
