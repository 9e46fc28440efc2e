"""What the commands of all packages have in common: help that answers at once, `--version`, plain tracebacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any

import typer


def make_app(package: str, summary: str, commands: Mapping[str, Callable[..., Any]]) -> typer.Typer:
    """A command line of several commands, to be run by `loong_core.cli.entry.run_app`.

    Args:
        package: the distribution whose version `--version` prints, `loong-llm`.
        summary: one line for `--help`.
        commands: each command's function by its name, in the order of `--help`. Their modules import nothing slow.
    """
    app = typer.Typer(help=summary, no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
    for name, function in commands.items():
        app.command(name)(function)

    def print_version(wanted: bool) -> None:
        if wanted:
            print(f"{package} {version(package)}")
            raise typer.Exit

    # As a default: typer evaluates annotations outside this function.
    show = typer.Option(False, "--version", callback=print_version, is_eager=True, help="Print the version and exit.")

    @app.callback(help=summary)
    def options(show_version: bool = show) -> None:
        pass

    return app
