"""The `loong` command: what is installed, what it can run on, and how runs went."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from loong_core.cli import devices, doctor, models, ops, plot
from loong_core.cli.entry import run_app

app = typer.Typer(
    name="loong",
    help="What is installed, what it can run on, and how runs went.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("doctor")(doctor.doctor)
app.command("devices")(devices.devices)
app.command("ops")(ops.ops)
app.command("models")(models.models)
app.command("plot")(plot.plot)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"loong-core {version('loong-core')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """What is installed, what it can run on, and how runs went."""


def main() -> None:
    """Entry point of the `loong` command."""
    run_app(app)


if __name__ == "__main__":
    main()
