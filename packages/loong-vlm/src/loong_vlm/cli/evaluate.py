"""`loong-vlm eval DIR --data PATH`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from loong_llm.cli.inference_options import DeviceName, Folder, Precision


def evaluate(
    folder: Folder,
    data: Annotated[list[str], typer.Option("--data", "-d", help="Files, folders or globs; may be repeated.")],
    sequence_length: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 2048,
    chat_template: Annotated[
        str | None, typer.Option(help="A shipped template's name, or a file; the model's own by default.")
    ] = None,
    pictures: Annotated[
        Literal["own", "blank", "swapped"], typer.Option(help="Show other images than the data's, to see what they do.")
    ] = "own",
    device: DeviceName = "auto",
    precision: Precision = "fp32",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge a model by conversations with images: loss, and the answers that it gives to the letter."""
    import json

    from loong_core.wording import counted
    from loong_vlm.cli.opened_model import open_model_folder
    from loong_vlm.evaluate import judge_files

    model = open_model_folder(folder, device, precision, chat_template)
    found = judge_files(model, data, sequence_length=sequence_length, pictures=pictures)
    if as_json:
        figures = {"loss": found.loss, "tokens": found.tokens, "exact": found.exact, "samples": found.samples}
        typer.echo(json.dumps(figures | {"accuracy": found.accuracy}))
        return
    typer.echo(
        f"loss {found.loss:.6f} nats a token, {found.exact:,} of {counted(found.samples, 'answer')} to the letter "
        f"({100 * found.accuracy:.1f} %), {counted(found.tokens, 'token')}"
    )
