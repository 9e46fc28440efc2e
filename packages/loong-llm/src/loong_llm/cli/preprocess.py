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
    conversations: Annotated[
        bool, typer.Option("--conversations", help="The inputs are conversations; OUTPUT is a folder for data.train.")
    ] = False,
    chat_template: Annotated[
        str | None, typer.Option(help="Of conversations: a shipped template or a .jinja file; the tokenizer's own.")
    ] = None,
    train_on: Annotated[str, typer.Option(help="Of conversations: assistant, last_turn or everything.")] = "assistant",
    bad_samples: Annotated[str, typer.Option(help="Of conversations: stop or skip.")] = "stop",
    workers: Annotated[int, typer.Option(min=1, help="Processes that tokenise.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a pair that is there.")] = False,
) -> None:
    """Tokenise ahead of training: text to Megatron's .bin and .idx files, conversations to a folder of marked tokens.

    `data.train` takes the files by their prefix, and the folder by its path. What a command that was ended has prepared
    of conversations, the next one takes up.
    """
    from loong_core.cli.option_names import as_options
    from loong_core.errors import UserError
    from loong_core.wording import counted
    from loong_llm.preprocess import preprocess as prepare
    from loong_llm.tokenizer import HuggingFaceEncoder, load_tokenizer

    if conversations:
        told = _conversations(inputs, output, tokenizer, chat_template, train_on, bad_samples, workers, overwrite)
        typer.echo(told)
        return
    if chat_template is not None or train_on != "assistant" or bad_samples != "stop":
        raise UserError("--chat-template, --train-on and --bad-samples are for --conversations; add that, or leave out")
    encoder = HuggingFaceEncoder(load_tokenizer(tokenizer))
    with as_options({"data.text_key": "--text-key"}):
        done = prepare(inputs, output, encoder, text_key=text_key, workers=workers, overwrite=overwrite)
    empty = f", {done.empty_documents:,} without text left out" if done.empty_documents else ""
    typer.echo(
        f"{counted(done.documents, 'document')}, {counted(done.tokens, 'token')}{empty}, in {done.seconds:.1f} s: "
        f"{done.prefix}.bin and .idx"
    )


def _conversations(
    inputs: list[str],
    output: Path,
    tokenizer: str,
    chat_template: str | None,
    train_on: str,
    bad_samples: str,
    workers: int,
    overwrite: bool,
) -> str:
    """Prepare conversations; what came of it, as a line."""
    import shutil
    from time import monotonic
    from typing import get_args

    from loong_core.errors import UserError
    from loong_llm.conversations.corpus import ConversationSource
    from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
    from loong_llm.conversations.preparation import BadSamples
    from loong_llm.conversations.rendering import TrainOn
    from loong_llm.conversations.shards import prepare_shards
    from loong_llm.tokenizer import load_tokenizer

    for name, value, known in (
        ("--train-on", train_on, get_args(TrainOn)),
        ("--bad-samples", bad_samples, get_args(BadSamples)),
    ):
        if value not in known:
            raise UserError(f"{name} is {value!r}; it can be {', '.join(known)}")
    if output.exists() and not overwrite:
        raise UserError(f"{output} is there already; choose another output, or give --overwrite to replace it")
    settings = RenderSettings(chat_template, {}, train_on)  # type: ignore[arg-type]
    encoder = ConversationEncoder(load_tokenizer(tokenizer), settings)
    began = monotonic()
    if overwrite:
        shutil.rmtree(output, ignore_errors=True)
    count, before = prepare_shards(
        [ConversationSource(path) for path in inputs],
        output,
        encoder,
        bad_samples=bad_samples,  # type: ignore[arg-type]
        workers=workers,
    )
    left = f"; {count.left_out_text()}" if count.left_out else ""
    reused = f", {before} files of it before" if before else ""
    return (
        f"{count.samples:,} samples, {count.trained_tokens:,} of {count.tokens:,} tokens trained on, in "
        f"{monotonic() - began:.1f} s{reused}: {output}{left}"
    )
