"""One run on this rank: device, ranks, folder, and who is told what, from opening to closing.

A recipe opens a run, builds its model and data with it, and hands both to `loong_core.train.loop.train`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import torch

import loong_kernels
from loong_core.config import RunConfig, RunFolder
from loong_core.device import Device, apply_environment, select
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.parallel.ranks import RankPlace, initialise_from_env, leave
from loong_core.train.agreement import on_first_rank
from loong_core.train.reporter import Reporter

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Run:
    """What a recipe and the loop need of a run besides model and data.

    Attributes:
        config: the whole configuration.
        folder: where everything is written.
        device: the kind of device; `context.device` is where this rank's tensors live.
        context: this rank's process groups.
        place: this rank among all.
        reporter: where figures and news go.
    """

    config: RunConfig
    folder: RunFolder
    device: Device
    context: ParallelContext
    place: RankPlace
    reporter: Reporter

    @property
    def dtype(self) -> torch.dtype:
        """What forward and backward compute in."""
        return PRECISIONS[self.config.precision]

    @property
    def peak_flops(self) -> float | None:
        """The most FLOP/s of one rank's device in this run's precision, None if not known."""
        return self.device.peak_flops(self.dtype)

    def say(self, text: str) -> None:
        """One line of news."""
        self.reporter.say(text)


@contextmanager
def open_run(config: RunConfig) -> Iterator[Run]:
    """Join the ranks, claim the run folder and write its `run.yaml`; on leaving, close what was opened. Collective.

    Raises:
        UserError: the device cannot be had, the folder belongs to another run, or another process is running in it.
    """
    selection = select(config.device)
    apply_environment(selection.device)
    place, torch_device = initialise_from_env(selection.device)
    folder = RunFolder(Path(config.output).expanduser())
    lock: TextIO | None = None
    reporter: Reporter | None = None
    try:
        loong_kernels.registry.configure(config.kernels)
        context = ParallelContext.build(Layout(**config.layout.model_dump()), torch_device)
        lock = on_first_rank_only(place, lambda: folder.claim(config))
        reporter = Reporter(config, folder, place.rank)
        selection.device.seed(config.seed)
        selection.device.reset_peak_memory()
        reporter.say(f"device: {selection.why}; {place.world_size} rank" + ("s" if place.world_size > 1 else ""))
        yield Run(config, folder, selection.device, context, place, reporter)
    finally:
        if reporter is not None:
            reporter.close()
        if lock is not None:
            lock.close()
        leave()


def on_first_rank_only[Kept](place: RankPlace, action: Callable[[], Kept]) -> Kept | None:
    """Do `action` on rank 0 and keep what it returns there; what it raises is raised on every rank. Collective."""
    kept: list[Kept] = []
    on_first_rank(lambda: kept.append(action()))
    return kept[0] if place.rank == 0 else None
