"""`loong-llm quickstart [--stage sft] --output DIR`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

PRETRAINED = Path("runs/quickstart")
"""Where the quickstart of pretraining writes, and that of fine-tuning begins."""
FINE_TUNED = Path("runs/sft")


def quickstart(
    stage: Annotated[
        Literal["pretrain", "sft"], typer.Option(help="Train on text, or fine-tune on questions and answers.")
    ] = "pretrain",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help=f"The run folder: {PRETRAINED}, or {FINE_TUNED} for sft.", show_default=False
        ),
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help=f"sft: the Hugging Face folder to begin with: {PRETRAINED}/hf, which is trained if it is not there.",
            show_default=False,
        ),
    ] = None,
    lora: Annotated[bool, typer.Option("--lora", help="sft: train low-rank adapters only.")] = False,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, help="Ranks; by default one, on a CPU of several cores two.")
    ] = None,
) -> None:
    """Train a small Qwen3 on the reference text inside CPython, or fine-tune it: two minutes, no network needed."""
    from loong_core.config import RunFolder
    from loong_core.errors import UserError
    from loong_core.parallel.launch import RankPlace, relaunch_as_ranks

    if stage == "pretrain" and (model is not None or lora):
        raise UserError(f"{'--lora' if lora else '--model'} is for --stage sft; add that, or leave it out")
    output = output or (FINE_TUNED if stage == "sft" else PRETRAINED)
    if not RankPlace.from_env().started:
        _prepare(stage, output, model)
        ranks = nproc or _ranks_of_this_machine()
        if ranks > 1:
            relaunch_as_ranks(ranks, output / "logs", RunFolder(output).after_a_crash)
    if stage == "sft":
        from loong_llm.quickstart_sft import quickstart_sft

        quickstart_sft(output, model or PRETRAINED / "hf", lora=lora)
    else:
        from loong_llm.quickstart import quickstart as quickstart_pretrain

        quickstart_pretrain(output)


def _prepare(stage: str, output: Path, model: Path | None) -> None:
    """What is there before the ranks start: the data and, for fine-tuning, a model."""
    if stage == "pretrain":
        from loong_llm.data.python_topics import write_python_topics

        write_python_topics(output / "data")
        return
    from loong_llm.quickstart_sft import write_quickstart_questions

    if model is None and not (PRETRAINED / "hf").exists():
        print(f"{PRETRAINED}/hf is not there: pretraining it first", flush=True)
        command = [sys.executable, "-m", "loong_llm.cli.main", "quickstart", "--output", str(PRETRAINED)]
        if status := subprocess.run(command).returncode:
            sys.exit(status)
    write_quickstart_questions(output / "data")


def _ranks_of_this_machine() -> int:
    """Two ranks use two cores better than one with two threads does: a model this small has too little to share."""
    from loong_core.device import select

    return min(2, len(os.sched_getaffinity(0))) if select().device.torch_type == "cpu" else 1
