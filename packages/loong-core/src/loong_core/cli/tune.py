"""`loong tune`: measure layers in bf16 and in 8 bits, for `fp8: {recipe: adaptive}`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loong_core.cli.families import decoder_config_of
from loong_core.cli.tables import add_row, console, table
from loong_core.errors import UserError


def tune(
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="A named model whose layers to measure; several times for several."),
    ] = None,
    device: Annotated[str | None, typer.Option("--device", help="A device's name; by default what a run gets.")] = None,
    tokens: Annotated[
        str, typer.Option("--tokens", help="Numbers of tokens of a microbatch, with commas.")
    ] = "512,1024,2048,4096,8192,16384",
    out: Annotated[Path | None, typer.Option("--out", help="File to write; by default where runs look for it.")] = None,
) -> None:
    """Time the layers of models in bf16 and in 8 bits on this device, and keep the table that adaptive runs read."""
    import torch

    from loong_core.device import apply_environment, select
    from loong_core.parallel.context import ParallelContext
    from loong_core.precision.shapes import works_of
    from loong_core.precision.table import Table, tuned_path
    from loong_core.precision.tuning import measured_rows

    counts = _counts(tokens)
    names = model or ["qwen3-8b", "qwen3-30b-a3b", "qwen3-0.6b"]
    works = list(dict.fromkeys(work for name in names for work in works_of(decoder_config_of(name)).values()))
    chosen = select(device).device
    apply_environment(chosen)
    if not chosen.capabilities().bf16:
        raise UserError(f"{chosen.name} does not compute in bf16, so there is nothing to compare")
    hardware = chosen.hardware()
    name = hardware.name if hardware is not None else chosen.name
    bound = ParallelContext.single(chosen.torch_type).device
    progress = console()
    rows = []
    for row in measured_rows(works, chosen, bound, counts):
        rows.append(row)
        progress.print(
            f"{row.work}, {row.tokens} rows: " + ", ".join(f"{k} {v:.0f} us" for k, v in row.microseconds.items())
        )
    written = out if out is not None else tuned_path(name)
    Table(name, f"torch {torch.__version__}", tuple(rows)).write(written)
    made = table(f"Blockwise 8 bits against bf16 on {name}", "layer", *(f"{count} tokens" for count in counts))
    for work in works:
        gains = [row.gain("blockwise") for row in rows if row.work == work]
        add_row(made, str(work), *(f"{gain:.2f}x" for gain in gains))
    progress.print(made)
    progress.print(f"written to {written}")


def _counts(text: str) -> list[int]:
    try:
        counts = sorted({int(part) for part in text.split(",")})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise UserError(f"--tokens is {text!r}; give positive numbers with commas, such as 1024,8192")
    return counts
