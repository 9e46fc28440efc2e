"""The file of ours in a policy's folder that tells a model other than the published one. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SIZES_FILE = "sizes.json"


def write_sizes(folder: Path, sizes: Mapping[str, Any]) -> None:
    """Write a model's sizes, in the form that its family reads."""
    (folder / SIZES_FILE).write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
