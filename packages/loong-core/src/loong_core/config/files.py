"""Faults of paths that a run names: of those it reads, that they are not there; of those it writes, that it cannot."""

from __future__ import annotations

import difflib
import os
import tempfile
from pathlib import Path

from loong_core.errors import Fault

_ROOM = 255
"""Bytes left in a path for what a run writes below its folder."""


def user_path(path: str) -> Path:
    """A path as a user writes it: `~` is home; a home that there is not is left as written."""
    return Path(os.path.expanduser(path))


def missing_file(where: str, path: str) -> Fault | None:
    """A fault if there is nothing at `path`, with the nearest name that exists; `where` is the key that names it."""
    target = user_path(path)
    if os.path.exists(target):  # unlike Path.exists it takes what cannot be a name
        return None
    # Say where the path stops existing: the folder that is missing, not only the file in it.
    while not os.path.exists(target.parent):
        target = target.parent
    siblings = sorted(entry.name for entry in target.parent.iterdir()) if target.parent.is_dir() else []
    near = difflib.get_close_matches(target.name, siblings, n=1, cutoff=0.5)
    kind = "file or folder" if str(target) == str(user_path(path)) else f"folder {target}, so no file"
    fix = f"the nearest there is {target.parent / near[0]}" if near else f"{target.parent.resolve()} has none like it"
    return Fault(where, f"there is no {kind} {path}", fix)


def unwritable(where: str, path: str) -> Fault | None:
    """A fault if the folder `path` cannot be made or written in; nothing stays behind. `where` is the key."""
    if "\0" in path:
        return Fault(where, f"is {path!r}, which holds a zero byte", "name another folder")
    target = user_path(path).absolute()
    nearest = target
    while not os.path.lexists(nearest):
        nearest = nearest.parent
    if not nearest.is_dir():
        kind = "a file" if nearest.exists() else "a link that leads nowhere"
        return Fault(where, f"{nearest} is {kind}", "name a folder")
    try:
        longest = os.pathconf(nearest, "PC_NAME_MAX")
        for part in target.relative_to(nearest).parts:
            if (length := len(os.fsencode(part))) > longest:
                what = f"{part[:20]}... is a name of {length} bytes, and {nearest} takes {longest}"
                return Fault(where, what, "shorten it")
        if (length := len(os.fsencode(target))) > os.pathconf(nearest, "PC_PATH_MAX") - _ROOM:
            return Fault(where, f"is a path of {length} bytes", "shorten it")
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        return Fault(where, f"cannot write in {nearest}: {reason}", "name another folder")
    return None
