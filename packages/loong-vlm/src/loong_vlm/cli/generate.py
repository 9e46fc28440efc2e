"""`loong-vlm generate DIR --prompt TEXT --image FILE`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loong_llm.cli.inference_options import DeviceName, Folder, Precision


def generate(
    folder: Folder,
    prompt: Annotated[str, typer.Option("--prompt", "-p", help="What the user says behind the images.")],
    image: Annotated[
        list[Path] | None, typer.Option("--image", "-i", help="An image to show; may be repeated.", show_default=False)
    ] = None,
    video: Annotated[
        list[Path] | None, typer.Option("--video", help="A video to show; may be repeated.", show_default=False)
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to write at most.")] = 128,
    chat_template: Annotated[
        str | None, typer.Option(help="A shipped template's name, or a file; the model's own by default.")
    ] = None,
    device: DeviceName = "auto",
    precision: Precision = "fp32",
) -> None:
    """Answer a question about images."""
    from loong_vlm.cli.opened_model import open_model_folder
    from loong_vlm.data.media import Medium, Stretch

    model = open_model_folder(folder, device, precision, chat_template)
    media = [Medium("image", Stretch(path)) for path in image or ()]
    media += [Medium("video", Stretch(path)) for path in video or ()]
    (written,) = model.answer([(prompt, media)], max_new_tokens=max_new_tokens)
    typer.echo(written)
