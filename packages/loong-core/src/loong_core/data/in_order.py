"""Work on many items in several processes, with the results in the items' order: they do not depend on how many."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any


def in_order[Item, Result](
    items: Iterable[Item], work: Callable[[Item], Result], *, workers: int = 1
) -> Iterator[tuple[Item, Result]]:
    """Each item with what `work` makes of it, in the items' order.

    Args:
        items: taken as they are needed; a few more than there are processes are in flight.
        work: sent once to each process, so it may hold much; picklable.
        workers: processes; 1 works in this one.

    Raises:
        Exception: what `work` raises.
    """
    if workers <= 1:
        for item in items:
            yield item, work(item)
        return
    waiting: list[tuple[Item, Future[Result]]] = []
    items = iter(items)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_start, initargs=(work,)) as pool:
        try:
            while True:
                for item in itertools.islice(items, 2 * workers - len(waiting)):
                    waiting.append((item, pool.submit(_do, item)))
                if not waiting:
                    return
                item, done = waiting.pop(0)
                yield item, done.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


_work: Callable[[Any], Any] | None = None


def _start(work: Callable[[Any], Any]) -> None:
    global _work  # a worker process has one job for its whole life
    _work = work
    # One thread a process: the processes already fill the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"


def _do(item: Any) -> Any:
    if _work is None:
        raise AssertionError("a worker process was used before it was started")
    return _work(item)
