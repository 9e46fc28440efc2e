"""Which families there are, and which one a `config.json` or a model's name belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from loong_core.errors import UserError
from loong_llm.families.family import Family

ENTRY_POINT_GROUP = "loong.families"


@dataclass(frozen=True)
class BrokenFamily:
    """A plug-in that could not be loaded.

    Attributes:
        name: its entry point.
        origin: the package that registers it.
        error: what loading it raised.
    """

    name: str
    origin: str
    error: str


@cache
def _discovered() -> tuple[dict[str, Family], list[BrokenFamily]]:
    """Every registered family by name, and those that failed to load; looked for once a process."""
    found: dict[str, Family] = {}
    broken: list[BrokenFamily] = []
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name):
        origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
        try:
            family = entry.load()
            if not isinstance(family, Family):
                raise TypeError(f"{entry.value} is a {type(family).__name__}, not a loong_llm.families.family.Family")
            found[family.name] = family
        except Exception as error:  # a plug-in may fail in any way, and must not take the others with it
            broken.append(BrokenFamily(entry.name, origin, f"{type(error).__name__}: {error}"))
    return found, broken


def families() -> dict[str, Family]:
    """Every family that loads, by name."""
    return dict(_discovered()[0])


def broken_families() -> list[BrokenFamily]:
    """Plug-ins that are registered but fail to load."""
    return list(_discovered()[1])


def find_family(hf: dict[str, Any]) -> Family:
    """The family of a `config.json`, by its `model_type`.

    Raises:
        UserError: if there is none; the message names the nearest and all supported types, and broken plug-ins.
    """
    wanted = hf.get("model_type")
    by_type = {kind: family for family in families().values() for kind in family.model_types}
    if isinstance(wanted, str) and wanted in by_type:
        return by_type[wanted]
    message = (
        "config.json has no model_type" if wanted is None else f"no family serves model_type {wanted!r} of config.json"
    )
    near = get_close_matches(str(wanted), list(by_type), n=1)
    message += f"; the nearest is {near[0]}" if near else ""
    message += f"; supported: {', '.join(sorted(by_type))}"
    for plugin in broken_families():
        message += f"; the family plug-in {plugin.name} of {plugin.origin} failed to load: {plugin.error}"
    raise UserError(message)


def named_configs() -> dict[str, dict[str, Any]]:
    """The `config.json` of every named size of every family, by name."""
    return {name: hf for family in families().values() for name, hf in family.named_configs().items()}


def named_config(name: str) -> dict[str, Any]:
    """The `config.json` of a named size; upper and lower case are the same.

    Raises:
        UserError: if there is none of that name; the message names the nearest.
    """
    known = named_configs()
    if (key := name.lower()) in known:
        return known[key]
    near = get_close_matches(key, list(known), n=3, cutoff=0.4) or sorted(known)
    raise UserError(f"no model is named {name!r}; near it: {', '.join(near)}; `loong models` lists all {len(known)}")
