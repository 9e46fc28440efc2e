"""The look of what the `loong` command prints."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_OF_FILES = 160
"""Columns where the output is no terminal: wide enough that rows stay on few lines for whoever reads the file."""

_COLOURS = {
    "available": "green",
    "serves": "green",
    "loaded": "green",
    "unavailable": "yellow",
    "not installed": "yellow",
    "failed": "bold red",
}


def console() -> Console:
    """A console on stdout: as wide as the terminal, or `WIDTH_OF_FILES`."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


def table(title: str, *columns: str) -> Table:
    """An empty table; cells that do not fit are wrapped, never cut."""
    made = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def add_row(to: Table, *cells: str) -> None:
    """Add a row of plain text, in which a state word that stands alone gets its colour."""
    to.add_row(*(Text(cell, style=_COLOURS.get(cell, "")) for cell in cells))
