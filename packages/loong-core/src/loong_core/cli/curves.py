"""Curves of runs: loss, gradient norm and throughput over steps, drawn to a PNG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loong_core.errors import UserError
from loong_core.train.metrics import read_rows


@dataclass(frozen=True)
class Run:
    """The metrics of one run: `rows` as in `metrics.jsonl`, at least one."""

    name: str
    rows: list[dict[str, Any]]

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of the rows that have a number under `key`."""
        pairs = [(row["step"], row[key]) for row in self.rows if isinstance(row.get(key), int | float)]
        return [step for step, _ in pairs], [value for _, value in pairs]


def read_run(path: Path) -> Run:
    """Read a run folder, or its metrics file. A last line that a killed run did not finish is left out.

    Raises:
        UserError: there is none, or it has no step, or a line is no row of metrics.
    """
    file = path / "metrics.jsonl" if path.is_dir() else path
    if not path.exists():
        raise UserError(f"{path} does not exist; name the `output` folder of a run")
    if not file.exists():
        raise UserError(f"{path} holds no metrics.jsonl; it is no run folder, or its run has not finished a step yet")
    rows = read_rows(file)
    if not rows:
        raise UserError(f"{file} has no rows; the run has not finished a step yet")
    return Run(path.resolve().name if path.is_dir() else path.resolve().parent.name, rows)


def draw_runs(runs: Sequence[Run], png: Path) -> None:
    """Draw loss (with validation loss), gradient norm and speed of one or more runs into `png`.

    Raises:
        UserError: the file cannot be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 9), layout="constrained")
    FigureCanvasAgg(figure)
    loss, norm, speed = figure.subplots(3, 1, sharex=True)
    unit = "samples" if all("samples_per_second" in run.rows[0] for run in runs) else "tokens"
    for index, (run, label) in enumerate(zip(runs, _labels(runs), strict=True)):
        colour = f"C{index % 10}"
        loss.plot(*run.series("loss"), color=colour, linewidth=1, label=f"{label}: training" if label else "training")
        steps, values = run.series("val_loss")
        if "val_loss_before" in run.rows[0]:
            steps, values = [run.rows[0]["step"] - 1, *steps], [run.rows[0]["val_loss_before"], *values]
        if steps:
            name = f"{label}: validation" if label else "validation"
            loss.plot(steps, values, color=colour, linestyle="--", marker="o", markersize=3, label=name)
        norm.plot(*run.series("grad_norm"), color=colour, linewidth=1)
        speed.plot(*run.series(f"{unit}_per_second"), color=colour, linewidth=1)
    loss.set_ylabel("loss (nats per token)" if unit == "tokens" else "loss (mean squared error)")
    loss.legend()
    norm.set_ylabel("gradient norm")
    if any(value > 0 for run in runs for value in run.series("grad_norm")[1]):
        norm.set_yscale("log")
    speed.set_ylabel(f"{unit} per second")
    speed.set_ylim(bottom=0)
    speed.set_xlabel("step")
    for axes in (loss, norm, speed):
        axes.grid(alpha=0.3)
    try:
        png.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(png, format="png", dpi=120)
    except OSError as error:
        raise UserError(f"{png} cannot be written: {error.strerror}; name another file with -o") from error


def _labels(runs: Sequence[Run]) -> list[str]:
    """Names that tell the runs apart; none is needed for one run."""
    if len(runs) == 1:
        return [""]
    names = [run.name for run in runs]
    return [f"{name} ({index + 1})" if names.count(name) > 1 else name for index, name in enumerate(names)]
