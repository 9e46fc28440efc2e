"""Faults of paths that a run names but that are not there."""

from __future__ import annotations

import difflib
from pathlib import Path

from loong_core.errors import Fault


def missing_file(where: str, path: str) -> Fault | None:
    """A fault if there is nothing at `path`, with the nearest name that exists; `where` is the key that names it."""
    target = Path(path).expanduser()
    if target.exists():
        return None
    # Say where the path stops existing: the folder that is missing, not only the file in it.
    while not target.parent.exists():
        target = target.parent
    siblings = sorted(entry.name for entry in target.parent.iterdir()) if target.parent.is_dir() else []
    near = difflib.get_close_matches(target.name, siblings, n=1, cutoff=0.5)
    kind = "file or folder" if str(target) == str(Path(path).expanduser()) else f"folder {target}, so no file"
    fix = f"the nearest there is {target.parent / near[0]}" if near else f"{target.parent.resolve()} has none like it"
    return Fault(where, f"there is no {kind} {path}", fix)
