"""Where the figures and news of a run go: metrics.jsonl, console and trackers from rank 0, each rank to its own log."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from loong_core.config import RunConfig, RunFolder
from loong_core.train.console import RunConsole
from loong_core.train.metrics import MetricsFile
from loong_core.train.trackers import open_trackers


class Reporter:
    """Takes a row a step on every rank.

    Rank 0 speaks for all, since a row's figures are the same on every rank or the slowest's; the other ranks write
    what they are told into `logs/rank-N.log`, where their own errors land too.
    """

    def __init__(self, config: RunConfig, folder: RunFolder, rank: int) -> None:
        folder.logs.mkdir(parents=True, exist_ok=True)
        self._config = config
        self._folder = folder
        self._stack = ExitStack()
        self._log = self._stack.enter_context((folder.logs / f"rank-{rank}.log").open("a", encoding="utf-8"))
        self._console = RunConsole(config.logging.every, self._log, silent=rank > 0)
        self._is_first = rank == 0
        self._sinks: list[Any] = []

    def begin(self, step: int, last_step: int, total_steps: int | None = None) -> None:
        """Training begins after `step`; rows of later steps, left by a run that was killed, are dropped."""
        if self._is_first:
            metrics = MetricsFile(self._folder.metrics, resume_after=step)
            self._sinks.append(metrics)
            if metrics.missing:
                self.say(f"metrics.jsonl lacks {metrics.missing} of the {step} steps before the checkpoint")
            self._sinks += open_trackers(
                self._config.logging, self._folder.root, self._config.model_dump(mode="json"), resume_after=step
            )
        self._sinks.append(self._console)
        for sink in self._sinks:
            self._stack.callback(sink.close)
        self._console.begin(step, last_step, total_steps)

    def say(self, text: str) -> None:
        """News, in a line."""
        self._console.say(text)

    def note(self, text: str) -> None:
        """A detail, for the log only."""
        self._log.write(text + "\n")
        self._log.flush()

    def write(self, row: dict[str, Any]) -> None:
        """The figures of one step."""
        for sink in self._sinks:
            sink.write(row)

    def close(self) -> None:
        """Close everything, also after an error."""
        self._stack.close()
