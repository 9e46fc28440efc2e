"""What a person sees of a run: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class RunConsole:
    """Prints a line every `every` steps, and above all others a progress bar where `stream` is a terminal.

    Lines also go to `log`, so that `logs/rank-0.log` has what the terminal had; `silent`, they go there only.
    """

    def __init__(
        self, every: int, log: TextIO | None = None, *, silent: bool = False, stream: TextIO | None = None
    ) -> None:
        self._every = every
        self._log = log
        self._silent = silent
        self._console = Console(file=stream or sys.stdout, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._first_step = 0
        self._last_step = 0
        self._total_steps = 0
        self._seconds: list[float] = []

    def say(self, text: str) -> None:
        """One line of news."""
        if not self._silent:
            self._console.print(text, markup=False)
        if self._log is not None:
            self._log.write(text + "\n")
            self._log.flush()

    def begin(self, step: int, last_step: int, total_steps: int | None = None) -> None:
        """Training goes from after `step` to `last_step`, of `total_steps` if it stops before the end."""
        self._first_step, self._last_step = step, last_step
        self._total_steps = total_steps or last_step
        if self._silent or not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("training", total=self._total_steps, completed=step, figures="")
        self._bar.start()

    def write(self, row: dict[str, Any]) -> None:
        """The figures of one step."""
        step = row["step"]
        self._seconds = [*self._seconds[-19:], row["step_seconds"]]
        if self._bar is not None and self._task is not None:
            figures = f"loss {row['loss']:.4f}  {_speed(row)}"
            self._bar.update(self._task, completed=step, figures=figures)
        if step % self._every == 0 or step in (self._first_step + 1, self._last_step) or "val_loss" in row:
            left = (self._last_step - step) * sum(self._seconds) / len(self._seconds)
            self.say(step_line(row, self._total_steps, left))

    def close(self) -> None:
        """The bar stays where it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def step_line(row: dict[str, Any], total_steps: int, seconds_left: float) -> str:
    """One step's figures as a line; of a mixture the load of its idlest and its busiest expert, even being 1."""
    step = row["step"]
    parts = [
        f"step {step:>{len(str(total_steps))}}/{total_steps}",
        f"loss {row['loss']:.4f}",
        f"grad {row['grad_norm']:.3g}",
        f"lr {row['lr']:.2e}",
        _speed(row),
    ]
    if row.get("mfu") is not None:
        parts.append(f"MFU {row['mfu']:.1%}")
    parts.append(f"mem {row['memory_bytes'] / 2**30:.2f} GiB")
    if "expert_load_max" in row:
        parts.append(f"experts {row['expert_load_min']:.2f}-{row['expert_load_max']:.2f}x")
    if row.get("expert_dropped"):
        parts.append(f"dropped {row['expert_dropped']:.1%}")
    if row["data_seconds"] > 0.05 * row["step_seconds"]:
        parts.append(f"data wait {row['data_seconds'] / row['step_seconds']:.0%}")
    if "imbalance" in row:
        parts.append(f"imbalance {row['imbalance_before']:.2f} -> {row['imbalance']:.2f}")
    parts.append(f"left {duration(seconds_left)}")
    if "val_loss" in row:
        parts.append(f"val_loss {row['val_loss']:.4f}{' (lowest)' if row.get('val_lowest') else ''}")
    if row.get("skipped"):
        parts.append("SKIPPED")
    return "  ".join(parts)


def duration(seconds: float) -> str:
    """`h:mm:ss` or `m:ss`."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _speed(row: dict[str, Any]) -> str:
    """What a task counts, per second."""
    if "samples_per_second" in row:
        speed = row["samples_per_second"]
        return f"{_count(speed) if speed >= 100 else f'{speed:.3g}'} samples/s"
    return f"{_count(row['tokens_per_second'])} tok/s"


def _count(number: float) -> str:
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.1f}{unit}"
    return f"{number:.0f}"
