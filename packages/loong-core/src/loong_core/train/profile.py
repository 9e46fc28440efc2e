"""`train.profile`: a trace of chosen steps from each rank, and what was allocated during them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from loong_core.config.sections import ProfileSection


class StepProfiler:
    """Profiles the steps `[first, last]` of a run; told of every step's begin and end.

    Writes `trace-rank-N.json.gz` (open it in Perfetto or chrome://tracing), and with `memory` also, on devices whose
    allocator records its history, `memory-rank-N.pickle` (open it at pytorch.org/memory_viz), elsewhere
    `memory-rank-N.txt`, a table of the operators that allocate most.
    """

    def __init__(self, settings: ProfileSection, folder: Path, rank: int, device: torch.device) -> None:
        self._steps = settings.steps
        self._memory = settings.memory
        self._folder = folder
        self._rank = rank
        self._device = device
        self._profiler: torch.profiler.profile | None = None

    def begin(self, step: int) -> None:
        """Start recording if `step` is the first to profile (or the first after a resume in their midst)."""
        if self._steps is None or self._profiler is not None or not self._steps[0] <= step <= self._steps[1]:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        self._profiler = torch.profiler.profile(
            profile_memory=self._memory, record_shapes=self._memory, acc_events=True
        )
        if self._memory and (allocator := self._allocator()) is not None:
            allocator._record_memory_history(max_entries=1_000_000)
        self._profiler.start()

    def end(self, step: int) -> None:
        """Write what was recorded if `step` is the last to profile."""
        if self._profiler is None or self._steps is None or step < self._steps[1]:
            return
        self.close()

    def close(self) -> None:
        """Write what was recorded so far, if anything is being recorded."""
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        profiler.export_chrome_trace(str(self._folder / f"trace-rank-{self._rank}.json.gz"))
        if not self._memory:
            return
        if (allocator := self._allocator()) is not None:
            allocator._dump_snapshot(str(self._folder / f"memory-rank-{self._rank}.pickle"))
            allocator._record_memory_history(enabled=None)
        else:
            table = profiler.key_averages().table(sort_by="self_cpu_memory_usage", row_limit=50)
            (self._folder / f"memory-rank-{self._rank}.txt").write_text(table, encoding="utf-8")

    def _allocator(self) -> Any | None:
        if self._device.type == "cpu":
            return None
        memory = getattr(torch.get_device_module(self._device), "memory", None)
        return memory if hasattr(memory, "_record_memory_history") else None
