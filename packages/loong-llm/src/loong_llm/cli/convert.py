"""`loong-llm convert SOURCE OUTPUT`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def convert(
    source: Annotated[
        Path,
        typer.Argument(
            help="A Hugging Face folder, a run's folder or one of its checkpoints, or a checkpoint of Megatron's.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Argument(help="The Hugging Face folder to write.", show_default=False)],
    step: Annotated[int | None, typer.Option(help="Which checkpoint of a run; the last by default.")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Of a checkpoint of Megatron's: the named size or Hugging Face folder that describes it."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="fp32, bf16, fp16, or keep.")] = "keep",
    max_shard_size: Annotated[str, typer.Option(help="Of one safetensors file, such as 5GB.")] = "5GB",
    adapter: Annotated[
        Path | None, typer.Option(help="A folder of PEFT's to add to the model; or name one as SOURCE.")
    ] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Rows that the vocabulary's tables are to have.")] = None,
    new_rows: Annotated[
        str, typer.Option(help="What new rows are: mean, zero, random, mean_covariance.")
    ] = "mean_covariance",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a folder that is there.")] = False,
) -> None:
    """Write a Hugging Face folder: of a checkpoint, with an adapter in it, of another dtype or vocabulary."""
    from loong_core.checkpoint.hf_writer import parse_size
    from loong_core.errors import UserError
    from loong_core.wording import counted
    from loong_llm.adapter import is_adapter
    from loong_llm.convert import convert as write
    from loong_llm.convert_vocabulary import VocabularyResize

    size = parse_size(max_shard_size)
    if adapter is not None or is_adapter(source):
        from loong_llm.merge_adapter import merge_adapter

        if step is not None or vocab_size is not None or model is not None:
            what = "--step, --model and --vocab-size are not for adapters"
            raise UserError(f"{what}; convert what comes of this in a second call")
        base, of_peft = (source, adapter) if adapter is not None else (None, source)
        merge_adapter(base, of_peft, output, dtype=dtype, max_shard_size=size, replace=overwrite)
        typer.echo(f"the model with {of_peft} in it: {output}")
        return
    resize = None if vocab_size is None else VocabularyResize(vocab_size, new_rows)  # type: ignore[arg-type]
    done = write(
        source,
        output,
        step=step,
        dtype=dtype,
        max_shard_size=size,
        replace=overwrite,
        vocabulary=resize,
        described_by=model,
    )
    some = ", ".join(done.left_out[:8]) + (f" and {len(done.left_out) - 8} more" if len(done.left_out) > 8 else "")
    left = f"; left out: {some}" if some else ""
    typer.echo(
        f"{counted(done.tensors, 'tensor')}, {done.size / 2**20:,.1f} MiB in {counted(done.files, 'file')}: "
        f"{done.folder}{left}"
    )
