"""Benchmark records: one JSON object a line, with what is needed to repeat the figure."""

from __future__ import annotations

import importlib.metadata
import json
import pathlib
import sys
from datetime import UTC, datetime
from typing import Any

FOLDER = pathlib.Path(__file__).parents[2] / "docs" / "benchmarks"
PACKAGES = ("torch", "triton", "transformers", "megatron-core", "transformer-engine", "liger-kernel", "tilelang")


def versions() -> dict[str, str]:
    """Versions of the packages that a figure may depend on, those that are installed."""
    found = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def device_name() -> str:
    """Name of the accelerator, or of none."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"{torch.cuda.get_device_name()} x{torch.cuda.device_count()}"


def append(file: pathlib.Path, figures: dict[str, Any]) -> None:
    """Add one record to `file`: the figures, and the command, versions, device and date they belong to."""
    row = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "command": "python -m " + " ".join(["tools.bench." + pathlib.Path(sys.argv[0]).stem, *sys.argv[1:]]),
        "device": device_name(),
        "versions": versions(),
        **figures,
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")
