"""Families of models that installed packages bring, seen from a package that knows none of them."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Protocol

from loong_core.errors import UserError

if TYPE_CHECKING:
    from loong_core.nn.decoder_config import DecoderConfig

ENTRY_POINT_GROUPS = ("loong.families", "loong.vision_families", "loong.diffusion_families")
"""Language models' and diffusion transformers'."""


class NamedFamily(Protocol):
    """What the `loong` command asks of a family."""

    name: str
    model_types: tuple[str, ...]

    def named_sizes(self) -> dict[str, int]:
        """Number of parameters of each configuration it ships, by name."""
        ...

    def named_configs(self) -> dict[str, dict[str, Any]]:
        """The `config.json` of each of them."""
        ...

    def decoder_config(self, hf: dict[str, Any]) -> DecoderConfig:
        """The model that a `config.json` describes."""
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


def decoder_config_of(model: str) -> DecoderConfig:
    """The decoder of a named model.

    Raises:
        UserError: no installed family has a model of that name; the message names the nearest.
    """
    known = {name: each.family for each in find_families() if each.family is not None for name in each.sizes or {}}
    family = known.get(model.lower())
    if family is None:
        near = get_close_matches(model.lower(), list(known), n=3, cutoff=0.4)
        hint = f"near it: {', '.join(near)}; " if near else ""
        raise UserError(f"no model is named {model!r}; {hint}`loong models` lists all {len(known)}")
    return family.decoder_config(family.named_configs()[model.lower()])
