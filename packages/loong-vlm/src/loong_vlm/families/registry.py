"""Which families, towers and projectors there are; each is found by its entry point."""

from __future__ import annotations

from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from loong_core.errors import UserError
from loong_vlm.families.family import VisionFamily
from loong_vlm.parts import ProjectorKind, TowerKind

FAMILIES, TOWERS, PROJECTORS = "loong.vision_families", "loong.towers", "loong.projectors"
"""The entry-point groups."""

_KINDS = {FAMILIES: VisionFamily, TOWERS: TowerKind, PROJECTORS: ProjectorKind}


@cache
def _discovered(group: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What a group registers, by name, and why some of it did not load; looked for once a process."""
    found: dict[str, Any] = {}
    broken: list[str] = []
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        try:
            loaded = entry.load()
            if not isinstance(loaded, _KINDS[group]):
                raise TypeError(f"{entry.value} is a {type(loaded).__name__}, not a {_KINDS[group].__name__}")
            found[loaded.name] = loaded
        except Exception as error:  # a plug-in may fail in any way, and must not take the others with it
            origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value
            broken.append(f"the plug-in {entry.name} of {origin} failed to load: {type(error).__name__}: {error}")
    return found, tuple(broken)


def vision_families() -> dict[str, VisionFamily]:
    """Every family that loads, by name."""
    return dict(_discovered(FAMILIES)[0])


def towers() -> dict[str, TowerKind]:
    """Every kind of tower that loads, by name."""
    return dict(_discovered(TOWERS)[0])


def projectors() -> dict[str, ProjectorKind]:
    """Every kind of projector that loads, by name."""
    return dict(_discovered(PROJECTORS)[0])


def find_vision_family(hf: dict[str, Any]) -> VisionFamily:
    """The family of a `config.json`, by its `model_type`.

    Raises:
        UserError: if there is none; the message names the nearest and all supported types, and broken plug-ins.
    """
    by_type = {kind: family for family in vision_families().values() for kind in family.model_types}
    return _chosen(by_type, hf.get("model_type"), "vision-language family serves model_type", FAMILIES)


def find_tower(vision_config: dict[str, Any]) -> TowerKind:
    """The kind of tower of a `vision_config`, by its `model_type`; raises as `find_vision_family`."""
    by_type = {kind: tower for tower in towers().values() for kind in tower.model_types}
    return _chosen(by_type, vision_config.get("model_type"), "vision tower serves model_type", TOWERS)


def find_projector(name: str) -> ProjectorKind:
    """The kind of projector of that name; raises as `find_vision_family`."""
    return _chosen(projectors(), name, "projector is called", PROJECTORS)


def _chosen(known: dict[str, Any], wanted: Any, what: str, group: str) -> Any:
    if wanted in known:
        return known[wanted]
    near = get_close_matches(str(wanted), list(known), n=1)
    message = f"no {what} {wanted!r}" + (f"; the nearest is {near[0]}" if near else "")
    raise UserError("; ".join([message, f"supported: {', '.join(sorted(known))}", *_discovered(group)[1]]))


def named_vision_configs() -> dict[str, dict[str, Any]]:
    """The `config.json` of every named size of every family, by name."""
    return {name: hf for family in vision_families().values() for name, hf in family.named_configs().items()}


def named_vision_config(name: str) -> dict[str, Any]:
    """The `config.json` of a named size; upper and lower case are the same.

    Raises:
        UserError: if there is none of that name; the message names the nearest.
    """
    known = named_vision_configs()
    if (key := name.lower()) in known:
        return known[key]
    near = get_close_matches(key, list(known), n=3, cutoff=0.4) or sorted(known)
    raise UserError(f"no vision-language model is named {name!r}; near it: {', '.join(near)}")
