"""The `loong-llm` command: check, train, evaluate, generate, convert."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from loong_core.cli.entry import run_app
from loong_llm.cli import check, convert, evaluate, generate, inspect_data, plan, preprocess, quickstart, train

app = typer.Typer(
    name="loong-llm",
    help="Train language models, and use what was trained.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("quickstart")(quickstart.quickstart)
app.command("train")(train.train)
app.command("check")(check.check)
app.command("inspect-data")(inspect_data.inspect_data)
app.command("plan")(plan.plan)
app.command("preprocess")(preprocess.preprocess)
app.command("convert")(convert.convert)
app.command("generate")(generate.generate)
app.command("eval")(evaluate.evaluate)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"loong-llm {version('loong-llm')}")
        raise typer.Exit


@app.callback()
def _options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train language models, and use what was trained."""


def main() -> None:
    """Entry point of the `loong-llm` command."""
    run_app(app)


if __name__ == "__main__":
    main()
