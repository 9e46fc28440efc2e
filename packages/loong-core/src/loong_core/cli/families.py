"""Families of models that installed packages bring, seen from a package that knows none of them."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

ENTRY_POINT_GROUPS = ("loong.families", "loong.vision_families", "loong.diffusion_families")
"""Language models' and diffusion transformers'."""


class NamedFamily(Protocol):
    """What the `loong` command asks of a family."""

    name: str
    model_types: tuple[str, ...]

    def named_sizes(self) -> dict[str, int]:
        """Number of parameters of each configuration it ships, by name."""
        ...


@dataclass(frozen=True)
class FoundFamily:
    """One entry point of a group.

    Attributes:
        name: the family's name; of one that failed, its entry point's.
        origin: the distribution that declares it, with its version.
        family: the family, None if it failed.
        sizes: number of parameters by configuration name.
        error: why it could not be loaded, or None.
    """

    name: str
    origin: str
    family: NamedFamily | None = None
    sizes: dict[str, int] | None = None
    error: str | None = None


def find_families() -> list[FoundFamily]:
    """Every declared family by entry point, language models first; one that fails is there with its error."""
    entries = [entry for group in ENTRY_POINT_GROUPS for entry in entry_points(group=group)]
    return [_load(entry) for entry in sorted(entries, key=lambda entry: entry.name)]


def _load(entry: EntryPoint) -> FoundFamily:
    origin = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
    try:
        family = entry.load()
        return FoundFamily(family.name, origin, family, dict(family.named_sizes()))
    except Exception as error:
        return FoundFamily(entry.name, origin, error=f"{type(error).__name__}: {error}")
