"""`loong-vlm convert SOURCE OUTPUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[
        Path,
        typer.Argument(help="A Hugging Face folder, a run's folder, or one of its checkpoints.", show_default=False),
    ],
    output: Annotated[Path, typer.Argument(help="The Hugging Face folder to write.", show_default=False)],
    step: Annotated[int | None, typer.Option(help="Which checkpoint of a run; the last by default.")] = None,
    dtype: Annotated[str, typer.Option(help="fp32, bf16, fp16, or keep.")] = "keep",
    max_shard_size: Annotated[str, typer.Option(help="Of one safetensors file, such as 5GB.")] = "5GB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder that is there.")] = False,
) -> None:
    """Write a model as a Hugging Face folder, in another dtype or in files of another size, or from a checkpoint."""
    from loong_core.checkpoint.hf_writer import parse_size
    from loong_core.wording import counted
    from loong_llm.convert import convert as write
    from loong_vlm.source import open_vision_model

    done = write(
        source,
        output,
        step=step,
        dtype=dtype,
        max_shard_size=parse_size(max_shard_size),
        replace=overwrite,
        open_model=open_vision_model,
    )
    left = f"; left out: {', '.join(done.left_out)}" if done.left_out else ""
    typer.echo(
        f"{counted(done.tensors, 'tensor')}, {done.size / 2**20:,.1f} MiB in {counted(done.files, 'file')}: "
        f"{done.folder}{left}"
    )
