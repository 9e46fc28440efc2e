"""Choosing parts of a model by patterns of their Hugging Face names.

A pattern matches a name if it matches a run of whole components of it: `q_proj` and `layers.3.*` and `mlp` all match
`model.layers.3.mlp.q_proj.weight` or parts like it. `*`, `?` and `[...]` work as in file names and may cross dots.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from fnmatch import fnmatchcase

from loong_core.errors import UserError


def matches(name: str, pattern: str) -> bool:
    """Whether a pattern matches a run of whole components of a dotted name."""
    return fnmatchcase(f".{name}.", f"*.{pattern}.*")


def chosen(names: Iterable[str], patterns: Iterable[str], where: str) -> set[str]:
    """The names that any of the patterns matches.

    Args:
        names: all there are.
        patterns: the user's.
        where: the run file's key, for the error.

    Raises:
        UserError: a pattern matches nothing; names the nearest component and tells what there is.
    """
    names = list(names)
    found: set[str] = set()
    for pattern in patterns:
        own = {name for name in names if matches(name, pattern)}
        if not own:
            components = sorted({part for name in names for part in name.split(".") if not part.isdigit()})
            near = get_close_matches(pattern.split(".")[-1], components, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UserError(f"{where}: {pattern!r} matches nothing; {hint}names are made of {', '.join(components)}")
        found |= own
    return found
