"""`loong-llm serve-check DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loong_llm.cli.inference_options import DeviceName


def serve_check(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A Hugging Face model folder.", show_default=False)],
    tolerance: Annotated[
        float, typer.Option(min=0, help="Largest difference of two logits, in parts of the largest.")
    ] = 1e-4,
    device: DeviceName = "auto",
) -> None:
    """Check that transformers opens a folder and computes from it what we do; status 2 if not."""
    from loong_core.device import apply_environment, select
    from loong_llm.serve_check import serve_check as check

    chosen = select(device).device
    apply_environment(chosen)
    found = check(folder, chosen.bind(0), tolerance=tolerance)
    chat = ", chat template alike" if found.chat else ", no chat template"
    typer.echo(
        f"{folder} serves: logits of {found.tokens} tokens equal transformers' within {found.difference:.2g} (the "
        f"largest is {found.largest:.3g}), {found.written} tokens written alike{chat}"
    )
