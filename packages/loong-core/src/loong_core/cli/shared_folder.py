"""Whether the ranks of a run see the same output folder."""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from pathlib import Path

_PATIENCE_SECONDS = 5.0


def nearest_existing(folder: Path) -> Path:
    """`folder`, or the closest folder above it that exists."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder


def ranks_that_miss(folder: Path) -> list[str]:
    """Ranks (`rank 3 on host-b`) that do not see a file which rank 0 writes into `folder`. Collective.

    The file goes into the nearest folder that exists and is taken away again. Ranks that do not see it at once look
    again for a few seconds, since a network file system may show it late.

    Raises:
        OSError: on every rank, if rank 0 cannot write there.
    """
    import torch.distributed as dist

    where = nearest_existing(folder)
    mark = [f".loong-{secrets.token_hex(8)}" if dist.get_rank() == 0 else "", ""]
    if dist.get_rank() == 0:
        try:
            (where / mark[0]).touch()
        except OSError as error:
            mark[1] = f"{where}: {error.strerror}"
    dist.broadcast_object_list(mark)
    if mark[1]:
        raise OSError(mark[1])
    seen = _appears(where / mark[0])
    told: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(told, "" if seen else f"rank {dist.get_rank()} on {socket.gethostname()}")
    if dist.get_rank() == 0:
        with contextlib.suppress(OSError):
            (where / mark[0]).unlink()
    return [each for each in told if each]


def _appears(path: Path) -> bool:
    """Whether the file is there, now or within a few seconds."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
