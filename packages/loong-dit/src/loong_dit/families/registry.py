"""Which families of diffusion transformers there are, and which one a `config.json` belongs to."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from loong_core.errors import UserError
from loong_dit.families.family import DiffusionFamily

ENTRY_POINT_GROUP = "loong.diffusion_families"


@cache
def _discovered() -> tuple[dict[str, DiffusionFamily], list[str]]:
    """Families by name, and a line for each plug-in that failed to load; looked for once a process."""
    found: dict[str, DiffusionFamily] = {}
    broken: list[str] = []
    for entry in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name):
        try:
            family = entry.load()
            if not isinstance(family, DiffusionFamily):
                raise TypeError(f"{entry.value} is a {type(family).__name__}, not a DiffusionFamily")
            found[family.name] = family
        except Exception as error:  # a plug-in may fail in any way, and must not take the others with it
            broken.append(f"the family plug-in {entry.name} failed to load: {type(error).__name__}: {error}")
    return found, broken


def families() -> dict[str, DiffusionFamily]:
    """Every family that loads, by name."""
    return dict(_discovered()[0])


def find_family(class_name: Any) -> DiffusionFamily:
    """The family of a `config.json`, by its `_class_name`, diffusers' or that of the family's own release.

    Raises:
        UserError: there is none; the message names the nearest and all.
    """
    by_class: dict[str, DiffusionFamily] = {}
    for family in families().values():
        by_class[family.class_name] = family
        if family.original_class_name is not None:
            by_class[family.original_class_name] = family
    if isinstance(class_name, str) and class_name in by_class:
        return by_class[class_name]
    what = "config.json has no _class_name" if class_name is None else f"no family serves _class_name {class_name!r}"
    near = get_close_matches(str(class_name), list(by_class), n=1)
    told = [what, *(f"the nearest is {name}" for name in near), f"served: {', '.join(sorted(by_class))}"]
    raise UserError("; ".join([*told, *_discovered()[1]]))


def named_configs() -> dict[str, dict[str, Any]]:
    """The `config.json` of every named size of every family, by name."""
    return {name: hf for family in families().values() for name, hf in family.named_configs().items()}


def named_config(name: str) -> dict[str, Any]:
    """The `config.json` of a named size; upper and lower case are the same.

    Raises:
        UserError: there is none of that name; the message names the nearest.
    """
    known = named_configs()
    if (key := name.lower()) in known:
        return known[key]
    near = get_close_matches(key, list(known), n=3, cutoff=0.4) or sorted(known)
    raise UserError(f"no model is named {name!r}; near it: {', '.join(near)}; `loong models` lists all")
