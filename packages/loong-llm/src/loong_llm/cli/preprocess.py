"""`loong-llm preprocess INPUT ... --output PREFIX`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def preprocess(
    inputs: Annotated[list[str], typer.Argument(help="Files, folders or globs of text.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Prefix of the .bin and .idx files.")],
    tokenizer: Annotated[str, typer.Option(help="A Hugging Face folder, or `bytes`.")],
    text_key: Annotated[str, typer.Option(help="Field or column that holds a document's text.")] = "text",
    workers: Annotated[int, typer.Option(min=1, help="Processes that tokenise.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a pair that is there.")] = False,
) -> None:
    """Tokenise text ahead of training into Megatron's .bin and .idx files, which `data.train` takes by their prefix."""
    from loong_core.cli.option_names import as_options
    from loong_core.wording import counted
    from loong_llm.preprocess import preprocess as prepare
    from loong_llm.tokenizer import HuggingFaceEncoder, load_tokenizer

    encoder = HuggingFaceEncoder(load_tokenizer(tokenizer))
    with as_options({"data.text_key": "--text-key"}):
        done = prepare(inputs, output, encoder, text_key=text_key, workers=workers, overwrite=overwrite)
    empty = f", {done.empty_documents:,} without text left out" if done.empty_documents else ""
    typer.echo(
        f"{counted(done.documents, 'document')}, {counted(done.tokens, 'token')}{empty}, in {done.seconds:.1f} s: "
        f"{done.prefix}.bin and .idx"
    )
