"""Measured times of layers in bf16 and in 8 bits, and which of them is faster for a number of tokens.

`loong tune` measures a table for the device at hand; one for the H200 is shipped. Each row is one layer shape and
number of tokens: microseconds on the device of forward and backward, weight gradient added to its sum, inputs rounded,
weights rounded before (once a step, which many microbatches share); and those that the host takes to launch them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from math import log2
from pathlib import Path
from typing import Any, Literal

from loong_core.errors import UserError

Kind = Literal["linear", "experts"]
SHIPPED = {"h200": "nvidia_h200.json"}
"""Tables that come with the package, by what the device's name contains."""


@dataclass(frozen=True)
class Work:
    """The shape of a layer: `experts` is 0 for a linear one, else the number of experts on this rank.

    Attributes:
        kind: a linear layer, or the experts of a mixture (both of their layers and SwiGLU between).
        out_features: of a linear layer; of experts their width.
        in_features: of a linear layer; of experts the width of the residual stream.
        experts: how many.
    """

    kind: Kind
    out_features: int
    in_features: int
    experts: int = 0

    def __str__(self) -> str:
        if self.kind == "linear":
            return f"linear {self.in_features} to {self.out_features}"
        return f"{self.experts} experts {self.in_features} to {self.out_features} and back"


@dataclass(frozen=True)
class Row:
    """Times of one shape and number of tokens (of experts: rows), in microseconds by recipe; `bf16` is always there.

    Attributes:
        work: the shape.
        tokens: how many.
        microseconds: of the device.
        host: of the host that launches the work, by the same keys.
    """

    work: Work
    tokens: int
    microseconds: dict[str, float]
    host: dict[str, float] = field(default_factory=dict, compare=False)

    def gain(self, recipe: str) -> float:
        """How many times faster the recipe is than bf16; 0 where it was not measured."""
        other = self.microseconds.get(recipe)
        return self.microseconds["bf16"] / other if other else 0.0


@dataclass(frozen=True)
class Estimate:
    """What a table says about a call.

    Attributes:
        gain: how many times faster the recipe is than bf16.
        measured: whether this shape was measured, between or beyond whose numbers of tokens the gain is read off;
            otherwise it is the nearest shape's.
        nearest: the row that the number of tokens is nearest to.
    """

    gain: float
    measured: bool
    nearest: Row


@dataclass(frozen=True)
class Table:
    """Measurements of one device.

    Attributes:
        device: its maker's name for it.
        made_with: versions and date.
        rows: the measurements.
        source: where the table was read from, for people.
    """

    device: str
    made_with: str
    rows: tuple[Row, ...]
    source: str = field(default="", compare=False)

    def estimate(self, work: Work, tokens: int, recipe: str = "blockwise") -> Estimate | None:
        """What is known about a call, None if nothing of the kind was measured."""
        same_kind = [row for row in self.rows if row.work.kind == work.kind and recipe in row.microseconds]
        if not same_kind:
            return None
        shape = min({row.work for row in same_kind}, key=lambda one: _distance(one, work))
        rows = sorted((row for row in same_kind if row.work == shape), key=lambda row: row.tokens)
        nearest = min(rows, key=lambda row: abs(log2(row.tokens / max(tokens, 1))))
        return Estimate(_interpolated(rows, tokens, recipe), shape == work, nearest)

    def write(self, path: Path) -> None:
        """Write the table as JSON, one row a line."""
        rows = ",\n".join(
            "  "
            + json.dumps(asdict(row.work) | {"tokens": row.tokens, "microseconds": row.microseconds, "host": row.host})
            for row in self.rows
        )
        head = json.dumps({"device": self.device, "made_with": self.made_with})[:-1]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{head}, "rows": [\n{rows}\n]}}\n', encoding="utf-8")


def read_table(path: Path) -> Table:
    """A table from a file.

    Raises:
        UserError: it is not there, or is no table; the message says what is wrong with it.
    """
    try:
        return _parsed(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise UserError(f"fp8.table: {path} cannot be read: {error.strerror}; `loong tune` writes one") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"fp8.table: {path} is no table of measurements: {error}; `loong tune` writes one") from error


def tuned_path(device_name: str) -> Path:
    """Where `loong tune` keeps the table of a device."""
    kept = "".join(letter if letter.isalnum() else "_" for letter in device_name.lower())
    return Path.home() / ".cache" / "loong" / "precision" / f"{kept}.json"


def table_for(device_name: str) -> Table | None:
    """The table of a device by its maker's name: the one that was tuned on this machine, else one that is shipped."""
    tuned = tuned_path(device_name)
    return read_table(tuned) if tuned.is_file() else shipped_table(device_name)


@cache
def shipped_table(device_name: str) -> Table | None:
    """The table that comes with the package for a device, None if there is none."""
    for part, file in SHIPPED.items():
        if part in device_name.lower():
            text = (files("loong_core.precision") / "tables" / file).read_text(encoding="utf-8")
            return _parsed(json.loads(text), f"shipped table {file}")
    return None


def _parsed(values: dict[str, Any], source: str) -> Table:
    rows = []
    for each in values["rows"]:
        work = Work(each["kind"], each["out_features"], each["in_features"], each.get("experts", 0))
        times = {str(name): float(time) for name, time in each["microseconds"].items()}
        if "bf16" not in times or not all(time > 0 for time in times.values()) or each["tokens"] < 1:
            raise ValueError(f"the row of {work} at {each['tokens']} tokens has no positive time for bf16 and others")
        host = {str(name): float(time) for name, time in each.get("host", {}).items()}
        rows.append(Row(work, int(each["tokens"]), times, host))
    return Table(str(values["device"]), str(values["made_with"]), tuple(rows), source)


def _distance(one: Work, other: Work) -> float:
    sizes: Iterable[tuple[int, int]] = (
        (one.out_features, other.out_features),
        (one.in_features, other.in_features),
        (max(one.experts, 1), max(other.experts, 1)),
    )
    return sum(abs(log2(mine / theirs)) for mine, theirs in sizes)


def _interpolated(rows: list[Row], tokens: int, recipe: str) -> float:
    """The gain at a number of tokens, linear in its logarithm between the rows on either side."""
    below = [row for row in rows if row.tokens <= tokens]
    above = [row for row in rows if row.tokens >= tokens]
    if not below or not above:
        return (above[0] if not below else below[-1]).gain(recipe)
    low, high = below[-1], above[0]
    if low.tokens == high.tokens:
        return low.gain(recipe)
    share = log2(tokens / low.tokens) / log2(high.tokens / low.tokens)
    return (1 - share) * low.gain(recipe) + share * high.gain(recipe)
