"""`metrics.jsonl`: one JSON object a step, and what its figures mean.

| key | meaning |
|---|---|
| `step` | optimizer step, from 1 |
| `loss` | mean over the trained tokens of the global batch, nats |
| `grad_norm` | Euclidean norm of the gradient before clipping |
| `lr` | learning rate of this step |
| `tokens` | tokens that went through the model since the run began; `samples` where a task counts these |
| `tokens_per_second` | of this step, over all ranks; or `samples_per_second` |
| `mfu` | model FLOPs utilisation, see `utilisation`; null where the device's peak is not known |
| `memory_bytes` | most memory in use by one rank since the run was started |
| `step_seconds`, `data_seconds` | of the slowest rank: the whole step, and the part that waited for data |
| `imbalance_before`, `imbalance` | heaviest data rank's cost over the mean, as the data came and as it was balanced |
| `skipped` | true where the step's gradients were dropped |
| `val_loss`, `val_tokens` | where the step was validated; `val_loss_before` in the first row: before any step |
| `val_lowest` | whether that `val_loss` is the lowest so far |
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, TextIO

from loong_core.errors import LoongError, UserError
from loong_core.json_text import parse_json

_REMEDY = "restore the file, or move it away: a run goes on without it"


class MetricsFile:
    """Appends rows to `metrics.jsonl`, each flushed at once."""

    def __init__(self, path: Path, *, resume_after: int) -> None:
        """Open `path`; rows of steps after `resume_after`, left by a run that ended without saving, are dropped."""
        keep = [row for row in read_rows(path) if row["step"] <= resume_after] if path.exists() else []
        self.missing = resume_after - len(keep)
        """Steps before the checkpoint whose rows are not there, as after a power cut: lost to plots, not to the run."""
        temporary = path.with_suffix(".tmp")
        temporary.write_text("".join(json.dumps(row) + "\n" for row in keep), encoding="utf-8")
        os.replace(temporary, path)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, row: dict[str, Any]) -> None:
        """Append one row. Values that JSON has no number for (NaN, infinities) become null."""
        try:
            self._file.write(json.dumps({key: _jsonable(value) for key, value in row.items()}) + "\n")
            self._file.flush()
        except OSError as error:
            raise LoongError(
                f"{self._file.name} cannot be written: {error.strerror}; mend that, and the same command goes on from "
                "the last checkpoint"
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics file; a last line that a killed run did not finish is left out.

    Raises:
        UserError: the file is no text, or a line within it is no row; names the line.
    """
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is no text file: {error}; {_REMEDY}") from None
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except json.JSONDecodeError as error:
            if number == len(lines):
                break
            raise UserError(f"{path}, line {number} is not JSON: {error}; {_REMEDY}") from error
        if not isinstance(row, dict) or not isinstance(row.get("step"), int):
            raise UserError(f"{path}, line {number} has no step: {str(row)[:80]}; {_REMEDY}")
        rows.append(row)
    return rows


def utilisation(
    units_per_second: float, flops_per_unit: float, ranks: int, peak_flops_per_rank: float | None
) -> float | None:
    """Model FLOPs utilisation (MFU, arXiv:2204.02311, appendix B).

    `tokens/s x FLOPs/token / (ranks x peak FLOP/s of a rank's device in the run's precision)`. A token's FLOPs are
    those the model needs, recomputation not counted: 6 for each parameter that multiplies it (the output projection
    once, the embedding lookup not at all) and, for each layer's causal attention, `6 x heads x head_dim x sequence
    length`.
    """
    if not peak_flops_per_rank:
        return None
    return units_per_second * flops_per_unit / (ranks * peak_flops_per_rank)


def _jsonable(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
