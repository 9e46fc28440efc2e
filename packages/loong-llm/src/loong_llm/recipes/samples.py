"""Texts that a model writes while it trains, so that people see what it has learnt."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from loong_core.train.run import Run
from loong_llm.generate import generate
from loong_llm.inference import OpenedModel
from loong_llm.recipes.stage_data import conversation_encoder
from loong_llm.recipes.trained_model import TrainedModel
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.sampling import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLES_FILE = "samples.jsonl"


def sample_writer(
    run: Run, config: TrainingConfig, model: TrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Callable[[int], Callable[[int], None]] | None:
    """What writes the samples that a run file asks for; None if it asks for none.

    Returns:
        A function that, given the run's number of steps, returns what is called with each step's number. All ranks
        write the same texts, since an engine may divide the weights among them; rank 0 tells of them.
    """
    section = config.samples
    if section is None:
        return None
    prompts = list(section.prompts)
    if config.stage == "sft":
        renderer = conversation_encoder(config, tokenizer).renderer
        prompts = [renderer.prompt([{"role": "user", "content": prompt}]) for prompt in prompts]
    longest = model.source.hf_config.get("max_position_embeddings")
    sampling = Sampling(section.temperature, seed=config.seed)
    path = run.folder.root / SAMPLES_FILE

    def begin(total_steps: int) -> Callable[[int], None]:
        def write(step: int) -> None:
            if step % section.every and step != total_steps:
                return
            with model.engine.evaluation() as stages:
                opened = OpenedModel(
                    model.source,
                    stages[0],  # type: ignore[arg-type]  # the layout leaves one whole decoder
                    tokenizer,
                    run.context.device,
                    longest if isinstance(longest, int) else None,
                )
                written = generate(
                    opened,
                    prompts,
                    sampling,
                    max_new_tokens=section.max_new_tokens,
                    rendered=config.stage == "sft",
                )
            if run.place.rank > 0:
                return
            rows = [
                {"step": step, "prompt": prompt, "text": each.text}
                for prompt, each in zip(section.prompts, written, strict=True)
            ]
            _append(path, step, rows)
            for row in rows:
                run.say(f"sample after step {step}: {row['prompt']!r} -> {row['text']!r}")

        return write

    return begin


def _append(path: Path, step: int, rows: list[dict[str, object]]) -> None:
    """Add rows of a step; those of this step and later, left by a run that ended without saving, are dropped."""
    kept = []
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if json.loads(line)["step"] < step]
    temporary = path.with_suffix(".tmp")
    lines = [*kept, *(json.dumps(row, ensure_ascii=False) for row in rows)]
    temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    os.replace(temporary, path)
