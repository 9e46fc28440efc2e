"""`loong-vlm convert-data SOURCE OUTPUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert_data(
    source: Annotated[str, typer.Argument(help="A file, folder or glob of records, or tars.", show_default=False)],
    output: Annotated[Path, typer.Argument(help="Folder for the shards.", show_default=False)],
    to: Annotated[str, typer.Option("--to", help="webdataset, jsonl or parquet.")] = "webdataset",
    form: Annotated[str | None, typer.Option(help="messages, sharegpt, alpaca, caption; found out by default.")] = None,
    media_root: Annotated[str | None, typer.Option(help="Folder of the images; each file's own by default.")] = None,
    samples_a_shard: Annotated[int, typer.Option(min=1, help="Records of a shard.")] = 1000,
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
    bad_samples: Annotated[str, typer.Option(help="stop, or skip: leave them out and count them.")] = "stop",
) -> None:
    """Write conversations with images in another form: WebDataset's tars, JSON lines with files, parquet with bytes.

    A conversion that was stopped goes on where it was when the same command is given again.
    """
    from loong_core.cli.option_names import as_options
    from loong_core.errors import UserError
    from loong_core.wording import counted
    from loong_vlm.data.conversion import convert_data as convert
    from loong_vlm.data.shards import WRITERS

    if to not in WRITERS:
        raise UserError(f"--to {to} is not known; known are {', '.join(WRITERS)}")
    if bad_samples not in ("stop", "skip"):
        raise UserError(f"--bad-samples {bad_samples} is not known; it is stop or skip")
    with as_options({"data.bad_samples": "--bad-samples", "data.media_root": "--media-root"}):
        done = convert(
            source,
            output,
            to,  # type: ignore[arg-type] - checked above
            form=form,  # type: ignore[arg-type] - checked there
            media_root=media_root,
            samples_a_shard=samples_a_shard,
            workers=workers,
            bad_samples=bad_samples,  # type: ignore[arg-type] - checked above
        )
    before = f", {counted(done.found, 'shard')} of them there before" if done.found else ""
    typer.echo(
        f"{counted(done.written, 'record')} with {counted(done.media, 'image')} in "
        f"{counted(done.shards, 'shard')} of {output}{before}"
    )
    for kind, count in done.left_out.items():
        typer.echo(f"left out: {count:,} ({kind}), the first: {done.examples[0]}")
