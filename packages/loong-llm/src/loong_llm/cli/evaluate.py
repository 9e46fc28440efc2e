"""`loong-llm eval DIR --data PATH`, or `--tasks NAMES`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from loong_llm.cli.inference_options import Adapter, DeviceName, Folder, Precision, Tokenizer


def evaluate(
    folder: Folder,
    data: Annotated[
        list[str] | None, typer.Option("--data", "-d", help="Files, folders or globs; may be repeated.")
    ] = None,
    tasks: Annotated[
        str | None,
        typer.Option(help="Names of the lm-evaluation-harness's tasks, with commas; needs the extra lm-eval."),
    ] = None,
    task_folder: Annotated[str | None, typer.Option(help="--tasks: a folder with YAML files of tasks.")] = None,
    num_fewshot: Annotated[int | None, typer.Option(min=0, help="--tasks: examples before each question.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="--tasks: questions of each task, for a quick look.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="--tasks: let the chat template write the questions.")] = False,
    text_key: Annotated[str, typer.Option(help="Field or column that holds a document's text.")] = "text",
    sequence_length: Annotated[int | None, typer.Option(help="Tokens of a window; at most 2048 by default.")] = None,
    stride: Annotated[int | None, typer.Option(help="Tokens between the beginnings of two windows.")] = None,
    tokenizer: Tokenizer = None,
    adapter: Adapter = None,
    device: DeviceName = "auto",
    precision: Precision = "fp32",
    with_transformers: Annotated[
        bool, typer.Option("--with-transformers", help="Let transformers compute it: the same figure, if all is well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Judge a model by text (loss, perplexity, bits per byte), or by tasks of the lm-evaluation-harness."""
    import json
    from dataclasses import asdict

    from loong_core.cli.option_names import as_options
    from loong_core.errors import UserError
    from loong_core.wording import counted
    from loong_llm.adapter import is_adapter
    from loong_llm.cli.inference_options import open_folder
    from loong_llm.evaluate import evaluate as judge

    if bool(data) == bool(tasks):
        raise UserError("give --data, to judge by text, or --tasks; one of the two")
    harness = {"--task-folder": task_folder, "--num-fewshot": num_fewshot, "--limit": limit, "--chat": chat or None}
    text = {"--sequence-length": sequence_length, "--stride": stride, "--with-transformers": with_transformers or None}
    if ignored := [name for name, value in (text if tasks else harness).items() if value is not None]:
        raise UserError(f"{ignored[0]} would be ignored with {'--tasks' if tasks else '--data'}; leave it out")
    model = open_folder(folder, tokenizer, device, precision, adapter)
    if tasks:
        from loong_llm.harness import figures, run_tasks

        own = None if task_folder is None else Path(task_folder)
        names = [name.strip() for name in tasks.split(",") if name.strip()]
        judged = run_tasks(model, names, task_folder=own, num_fewshot=num_fewshot, limit=limit, chat=chat)
        if as_json:
            typer.echo(json.dumps(judged["results"], default=str))
            return
        for task, metric, value, error in figures(judged):
            typer.echo(f"{task}: {metric} {value:.4f}" + (f" (standard error {error:.4f})" if error else ""))
        return
    assert data is not None
    if with_transformers and (adapter is not None or is_adapter(Path(folder))):
        raise UserError("--with-transformers takes a model's folder; write one with loong-llm convert --adapter")
    if with_transformers:
        from loong_llm.reference_model import as_transformers_computes

        model = as_transformers_computes(model, folder)
    with as_options({"data.text_key": "--text-key", "sequence_length ": "--sequence-length "}):
        found = judge(model, data, text_key=text_key, sequence_length=sequence_length, stride=stride)
    if as_json:
        typer.echo(json.dumps(asdict(found)))
        return
    bits = f", {found.bits_per_byte:.4f} bits per byte" if found.bits_per_byte is not None else ""
    typer.echo(
        f"loss {found.loss:.6f} nats a token, perplexity {found.perplexity:.4g}{bits} "
        f"({counted(found.tokens, 'token')} of {counted(found.documents, 'document')}, "
        f"windows of {found.sequence_length})"
    )
