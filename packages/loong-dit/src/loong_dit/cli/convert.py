"""`loong-dit convert SOURCE OUTPUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def convert(
    source: Annotated[
        Path, typer.Argument(help="A transformer's folder, a pipeline's, or a run's.", show_default=False)
    ],
    output: Annotated[Path, typer.Argument(help="The folder to write.", show_default=False)],
    names: Annotated[
        Literal["diffusers", "original"], typer.Option(help="Whose names tensors get; original: the family's release.")
    ] = "diffusers",
    dtype: Annotated[str, typer.Option(help="fp32, bf16, fp16, or keep.")] = "keep",
    step: Annotated[int | None, typer.Option(help="Which checkpoint of a run; the last by default.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Of a run: the weights themselves, not their average.")] = False,
    max_shard_size: Annotated[str, typer.Option(help="Of one safetensors file, such as 5GB.")] = "5GB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder that is there.")] = False,
) -> None:
    """Write a transformer under diffusers' or the original names, in another dtype, or from a run's checkpoint."""
    from loong_core.checkpoint.hf_writer import parse_size
    from loong_core.wording import counted
    from loong_dit.convert import convert as write

    done = write(
        source, output, names=names, dtype=dtype, step=step, raw=raw, max_shard_size=parse_size(max_shard_size),
        replace=overwrite,
    )  # fmt: skip
    where = ", ".join(map(str, done.folders))
    typer.echo(f"{counted(done.tensors, 'tensor')}, {done.size / 2**20:,.1f} MiB: {where}")
