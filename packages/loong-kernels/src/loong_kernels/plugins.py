"""Finding the implementations that other distributions bring, by the entry-point group `loong.kernels`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loong_kernels.registry import Registry

GROUP = "loong.kernels"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Plugin:
    """One entry point of the group and what became of it.

    Attributes:
        name: the entry point's name.
        origin: distribution and version that declares it.
        error: why it could not be loaded, or None.
        implementations: `op/name` of what it registered.
    """

    name: str
    origin: str
    error: str | None
    implementations: tuple[str, ...] = ()


def load_plugins(registry: Registry) -> list[Plugin]:
    """Call every entry point of the group with `registry`; what fails is recorded with its error and logged."""
    found = sorted(entry_points(group=GROUP), key=lambda entry_point: entry_point.name)
    return [load_plugin(entry_point, registry) for entry_point in found]


def load_plugin(entry_point: EntryPoint, registry: Registry) -> Plugin:
    """Call one entry point with `registry`; if it raises, nothing of what it registered stays."""
    distribution = entry_point.dist
    origin = f"{distribution.name} {distribution.version}" if distribution else entry_point.value
    try:
        with registry.registering(origin) as registered:
            entry_point.load()(registry)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        logger.warning("kernels of plug-in %r (%s) are not available: %s", entry_point.name, origin, message)
        return Plugin(entry_point.name, origin, message)
    return Plugin(entry_point.name, origin, None, tuple(registered))
