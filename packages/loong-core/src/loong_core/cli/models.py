"""`loong models`: the families of models that installed packages bring, and their named configurations."""

from __future__ import annotations

from typing import Annotated

import typer

from loong_core.cli.families import FoundFamily, find_families
from loong_core.cli.tables import add_row, console, table
from loong_core.errors import UserError


def models(
    pattern: Annotated[str, typer.Argument(help="Only names that hold this text.", show_default=False)] = "",
) -> None:
    """List model families and their named configurations with parameter counts."""
    found = find_families()
    if not found:
        raise UserError("no model family is installed; families come with packages such as loong-llm")
    out = console()
    rows = [
        (each, name, parameters)
        for each in found
        for name, parameters in sorted((each.sizes or {}).items(), key=lambda size: (size[1], size[0]))
        if pattern.lower() in name.lower() or pattern.lower() in each.name.lower()
    ]
    working = [each for each in found if each.error is None]
    if rows:
        made = table("Models", "name", "parameters", "family", "model_type", "origin")
        for each, name, parameters in rows:
            add_row(made, name, short_count(parameters), each.name, _types(each), each.origin)
        out.print(made)
    elif working and pattern:
        raise UserError(f"no named model or family holds {pattern!r}; families: {', '.join(_names(working))}")
    for each in found:
        if each.error is not None:
            out.print(f"family {each.name} of {each.origin} failed: {each.error}", style="bold red", markup=False)


def short_count(parameters: int) -> str:
    """`8.03 B`, `494 M`: three digits."""
    for limit, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if parameters >= limit:
            scaled = parameters / limit
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f} {unit}"
    return str(parameters)


def _types(found: FoundFamily) -> str:
    return ", ".join(found.family.model_types) if found.family is not None else ""


def _names(found: list[FoundFamily]) -> list[str]:
    return sorted(each.name for each in found)
