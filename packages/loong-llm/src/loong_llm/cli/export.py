"""`loong-llm export RUN_FOLDER`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def export(
    run_folder: Annotated[Path, typer.Argument(help="The folder of a run that is training.", show_default=False)],
) -> None:
    """Have a run that is training write its model as a Hugging Face folder after the step that it is at.

    It goes on training; the model appears, complete, in `exports/` of the run folder.
    """
    from loong_core.config import RunFolder
    from loong_core.errors import UserError

    folder = RunFolder(run_folder.expanduser())
    if not folder.run_yaml.is_file():
        raise UserError(f"{folder.root} is not a run's folder: it has no run.yaml")
    if not folder.in_use:
        raise UserError(
            f"nothing is training in {folder.root}; `loong-llm convert {folder.root} OUTPUT` writes the model of its "
            "last checkpoint"
        )
    folder.export_request.touch()
    typer.echo(f"asked for; the model appears in {folder.export_of(0).parent} after the step that is under way")
