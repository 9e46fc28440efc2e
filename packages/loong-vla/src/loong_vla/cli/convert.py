"""`loong-vla convert SOURCE TARGET`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def convert(
    source: Annotated[Path, typer.Argument(help="A policy's folder, with lerobot's or openpi's names of weights.")],
    target: Annotated[Path, typer.Argument(help="The folder to write, as lerobot's pretrained_model.")],
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Of the weights.")] = "float32",
    dataset: Annotated[
        Path | None, typer.Option(help="A dataset whose statistics it gets, where the folder has none.")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="A tokenizer's folder, where the folder has none.")] = None,
) -> None:
    """Write a policy in lerobot's form, with processors and statistics, so that lerobot runs it."""
    from loong_vla.convert import convert_policy

    convert_policy(source, target, dtype, dataset, tokenizer)
    typer.echo(f"written to {target}")
