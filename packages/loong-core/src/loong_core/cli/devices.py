"""`loong devices`: every device this environment knows of, whether it can be used, and who brought it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from loong_core.cli.tables import add_row, console, table

if TYPE_CHECKING:
    from rich.table import Table

    from loong_core.device import Found


def devices() -> None:
    """List devices: state, origin, and what was found or is missing."""
    from loong_core.device import discover, select

    out = console()
    out.print(device_table(discover()))
    out.print(f"a run gets: {select(None).why}", markup=False)


def device_table(found: list[Found]) -> Table:
    """One row a device."""
    made = table("Devices", "device", "state", "origin", "what was found or is missing")
    for each in found:
        add_row(made, each.name, each.state, each.origin, each.reason)
    return made
