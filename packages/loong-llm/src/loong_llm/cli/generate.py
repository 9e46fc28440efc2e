"""`loong-llm generate DIR --prompt TEXT`."""

from __future__ import annotations

from typing import Annotated

import typer

from loong_core.config.sections import LARGEST_SEED
from loong_llm.cli.inference_options import Adapter, DeviceName, Folder, Precision, Tokenizer


def generate(
    folder: Folder,
    prompt: Annotated[list[str], typer.Option("--prompt", "-p", help="The beginning of a text; may be repeated.")],
    chat: Annotated[
        bool, typer.Option("--chat", help="Prompts are what a user says; the chat template writes the conversation.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="With --chat, what the system says before.")] = None,
    adapter: Adapter = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to write at most.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 takes the best token every time.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Choose among this many best tokens.")] = None,
    top_p: Annotated[float, typer.Option(help="Choose among the best tokens of this probability together.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Decides the draws.")] = 0,
    tokenizer: Tokenizer = None,
    device: DeviceName = "auto",
    precision: Precision = "fp32",
) -> None:
    """Write on from a prompt, or with --chat answer it."""
    from loong_core.errors import UserError
    from loong_llm.cli.inference_options import open_folder
    from loong_llm.generate import chat_prompts
    from loong_llm.generate import generate as write
    from loong_llm.sampling import Sampling

    sampling = Sampling(temperature, top_k, top_p, seed)
    if system is not None and not chat:
        raise UserError("--system is for --chat; add that, or leave it out")
    model = open_folder(folder, tokenizer, device, precision, adapter)
    shown = [""] * len(prompt) if chat else prompt
    asked = chat_prompts(model, prompt, system) if chat else prompt
    if len(prompt) > 1:
        texts = write(model, asked, sampling, max_new_tokens=max_new_tokens, rendered=chat)
        for begun, written in zip(shown, texts, strict=True):
            typer.echo(begun + written.text)
        return
    untold = shown[:1]

    def tell(number: int, text: str) -> None:
        typer.echo("".join(untold) + text, nl=False)
        untold.clear()

    # As it comes: a long text can be watched, and stopped with Ctrl-C.
    write(model, asked, sampling, max_new_tokens=max_new_tokens, rendered=chat, on_text=tell)
    typer.echo("".join(untold))
