"""Ranks that are forked from the test, start in no time, and may be killed, stopped or left hanging."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import traceback
from time import monotonic

from loong_core.errors import LoongError
from loong_core.parallel.launch import die_with_parent
from loong_core.parallel.megatron_import import import_megatron

GRACE_SECONDS = 3.0
"""How long ranks may go on after one has ended otherwise than well, as under `--nproc`."""


def run_forked(nproc, function, *arguments, log_dir, timeout=60.0):
    """Run a function as `nproc` ranks; their exit statuses in order, `-N` after signal N.

    What rank R prints goes to `out-R.txt` in `log_dir`, errors too.
    """
    import_megatron()  # once, here: the forks have it
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log_dir.mkdir(parents=True, exist_ok=True)
    pids = [_fork(rank, nproc, port, function, arguments, log_dir) for rank in range(nproc)]
    return _wait(pids, timeout)


def _fork(rank, nproc, port, function, arguments, log_dir):
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent()
        output = os.open(log_dir / f"out-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": nproc, "LOCAL_WORLD_SIZE": nproc}
        os.environ |= {name: str(value) for name, value in place.items()}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        function(*arguments)
        status = 0
    except LoongError as error:
        print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        status = error.exit_status
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def _wait(pids, timeout):
    handles = {os.pidfd_open(pid): rank for rank, pid in enumerate(pids)}
    statuses = [0] * len(pids)
    deadline = monotonic() + timeout
    while handles:
        ready, _, _ = select.select(list(handles), [], [], max(0.0, deadline - monotonic()))
        if not ready:
            for rank in handles.values():
                os.kill(pids[rank], signal.SIGKILL)
            deadline = monotonic() + timeout
        for handle in ready:
            rank = handles.pop(handle)
            os.close(handle)
            statuses[rank] = os.waitstatus_to_exitcode(os.waitpid(pids[rank], 0)[1])
            if statuses[rank]:
                deadline = min(deadline, monotonic() + GRACE_SECONDS)
    return statuses
