"""Which families of policies there are; each is found by its entry point."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from loong_core.errors import ConfigError, Fault
from loong_vla.families.family import PolicyFamily

GROUP = "loong.policies"


@cache
def policy_families() -> dict[str, PolicyFamily]:
    """Every family, by name; what fails to load is an error where it is asked for."""
    found = (entry.load() for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name))
    return {family.name: family for family in found}


def family_of_kind(kind: str) -> PolicyFamily:
    """The family of a policy's kind.

    Raises:
        KeyError: there is none.
    """
    return {kind: family for family in policy_families().values() for kind in family.kinds}[kind]


def find_policy_family(where: str, values: Mapping[str, Any]) -> PolicyFamily:
    """The family that a `config.json` belongs to.

    Args:
        where: the file, for the error.
        values: what it says.

    Raises:
        ConfigError: none serves it; the message names what is served.
    """
    key = "type" if "type" in values or "model_type" not in values else "model_type"
    try:
        return family_of_kind(str(values.get(key)))
    except KeyError:
        served = ", ".join(sorted(kind for family in policy_families().values() for kind in family.kinds))
        raise ConfigError([Fault(where, f"{key} is {values.get(key)!r}", f"{served} are served here")]) from None
