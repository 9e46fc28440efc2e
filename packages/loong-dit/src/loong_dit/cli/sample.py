"""`loong-dit sample MODEL --caption TEXT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def sample(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A pipeline's folder, or a transformer's.")],
    caption: Annotated[list[str], typer.Option("--caption", "-c", help="What is to be seen; may be repeated.")],
    size: Annotated[str, typer.Option(help="Rows x columns in pixels, as 480x832.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the pictures and videos.")] = Path(
        "samples"
    ),
    frames: Annotated[int, typer.Option(min=1, help="Frames of a video.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Of the sampler.")] = 50,
    guidance: Annotated[float, typer.Option(min=0, help="Strength of classifier-free guidance; 1 for none.")] = 5.0,
    shift: Annotated[float, typer.Option(min=0.01, help="Of the sampler's noise levels.")] = 5.0,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Decides the noise.")] = 0,
    fps: Annotated[int, typer.Option(min=1, help="Frames a second of videos.")] = 16,
    vae: Annotated[str | None, typer.Option(help="A VAE's folder, pixels, or pixels-grey; the model's own.")] = None,
    text_encoder: Annotated[str | None, typer.Option(help="A pipeline's folder, or words-N; the model's own.")] = None,
    longest_caption: Annotated[int, typer.Option(min=1, help="Tokens beyond which a caption is cut.")] = 512,
    device: Annotated[str, typer.Option(help="Where it computes.")] = "auto",
) -> None:
    """Draw pictures or videos from captions, into PNG and MP4 files."""
    from loong_dit.recipes.draw import DrawSettings, draw

    settings = DrawSettings(size, frames, steps, guidance, shift, seed, fps, longest_caption, device)
    for file in draw(model, caption, output, settings, vae=vae, text_encoder=text_encoder):
        typer.echo(str(file))
