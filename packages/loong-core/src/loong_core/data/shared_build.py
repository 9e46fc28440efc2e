"""Work that one rank does for all: the others wait however long it takes, and get its result or its error."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any

import torch.distributed as dist

from loong_core.errors import UserError

_HEARTBEAT_SECONDS = 20.0


def _alone() -> bool:
    return not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1


def from_first_rank[T](build: Callable[[], T]) -> T:
    """`build()`'s result, computed on rank 0 only. Collective over the default group.

    While rank 0 works it sends a sign of life every 20 seconds, so that tokenising for an hour trips no time limit.

    Raises:
        UserError: what rank 0 raised, on every rank alike.
    """
    if _alone():
        return build()
    if dist.get_rank() != 0:
        while (message := _broadcast(None)) == ("working", None):
            pass
        kind, value = message
        if kind == "error":
            raise value if isinstance(value, UserError) else RuntimeError(f"on rank 0: {value}")
        return value
    with ThreadPoolExecutor(1) as pool:
        work = pool.submit(build)
        while True:
            try:
                result = work.result(timeout=_HEARTBEAT_SECONDS)
            except NotYet:
                _broadcast(("working", None))
            except UserError as error:
                _broadcast(("error", error))
                raise
            except BaseException as error:
                _broadcast(("error", repr(error)))
                raise
            else:
                _broadcast(("done", result))
                return result


def _broadcast(message: tuple[str, Any] | None) -> tuple[str, Any]:
    box = [message]
    dist.broadcast_object_list(box, src=0)
    if box[0] is None:
        raise AssertionError("rank 0 broadcast nothing")
    return box[0]


def on_every_rank[T](act: Callable[[], T]) -> T:
    """`act()` on each rank; if it fails on any, every rank raises, so that none waits for one that has left.

    Raises:
        UserError: the first failing rank's error, with its number.
    """
    if _alone():
        return act()
    error: Exception | None = None
    results: list[T] = []
    try:
        results.append(act())
    except Exception as raised:
        error = raised
    told: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(told, None if error is None else str(error) if isinstance(error, UserError) else repr(error))
    failing = next((rank for rank, text in enumerate(told) if text is not None), None)
    if failing is not None:
        raise UserError(f"on rank {failing}: {told[failing]}") from error
    return results[0]
