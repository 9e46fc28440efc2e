"""Statistics of a whole dataset, and their place in it."""

from __future__ import annotations

import json
import os
from pathlib import Path

from loong_core.config.files import user_path
from loong_vla.data.metadata import read_metadata
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.data.statistics import Statistics, compute_statistics
from loong_vla.data.tables import read_columns


def dataset_statistics(root: Path | str) -> dict[str, Statistics]:
    """Exact statistics of states and actions over all frames.

    Raises:
        UserError: the dataset cannot be read.
    """
    metadata = read_metadata(user_path(str(root)))
    for feature in (STATE, ACTION):
        metadata.width(feature)
    columns = read_columns(metadata, [STATE, ACTION])
    return {feature: compute_statistics(values) for feature, values in columns.items()}


def write_statistics(root: Path | str, found: dict[str, Statistics]) -> Path:
    """Put statistics into `meta/stats.json`; what it holds of other features (pictures) stays."""
    file = user_path(str(root)) / "meta" / "stats.json"
    values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    values |= {feature: {name: each.tolist() for name, each in entry.items()} for feature, entry in found.items()}
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, file)
    return file
