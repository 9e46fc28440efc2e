"""The quickstart of fine-tuning: the small model of the first quickstart learns to answer questions about Python.

It is an ordinary run: its run file is `run.yaml` in the output folder. What it learnt is told apart from what any text
of that kind would have taught it by giving each held-out question the answer of another: the true answers must be
more likely than those.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from loong_core.config import LoggingSection, RunFolder, TrainSection
from loong_core.config.loading import Loaded
from loong_core.data.batch import IGNORED_LABEL
from loong_core.device import select
from loong_core.parallel.ranks import RankPlace
from loong_core.train.loop import Progress
from loong_llm.check import checked
from loong_llm.conversations.corpus import open_conversations
from loong_llm.conversations.python_questions import (
    python_questions,
    swapped,
    write_python_questions,
    write_questions,
)
from loong_llm.generate import generate
from loong_llm.inference import OpenedModel, open_for_inference
from loong_llm.recipes.stage import train_stage
from loong_llm.recipes.stage_data import cache_folder, conversation_encoder, conversation_settings
from loong_llm.recipes.training_config import DataSection, LoraSection, ModelSection, SourceSection, TrainingConfig
from loong_llm.sampling import Sampling

STEPS, ADAPTER_STEPS = 800, 1000
TRAIN, HELD_OUT, SWAPPED = "questions_train.jsonl", "questions_held_out.jsonl", "questions_swapped.jsonl"


@dataclass(frozen=True)
class Outcome:
    """What fine-tuning did to the loss of held-out answers, in nats a token.

    Attributes:
        before: of the model that it began with.
        after: of the fine-tuned one.
        swapped: of the fine-tuned one, each question with the answer of another.
    """

    before: float
    after: float
    swapped: float

    def __str__(self) -> str:
        """The last line of the quickstart."""
        fall, below = 100 * (1 - self.after / self.before), 100 * (1 - self.after / self.swapped)
        return (
            f"held-out loss {self.before:.4f} -> {self.after:.4f} (-{fall:.1f} %), {below:.1f} % below that of swapped "
            f"answers ({self.swapped:.4f})"
        )


def write_quickstart_questions(folder: Path) -> None:
    """Write questions to train on, those held out, and those with swapped answers, into `folder`."""
    write_python_questions(folder)
    _, held_out = python_questions()
    write_questions(folder / SWAPPED, swapped(held_out))


def quickstart_sft_config(output: Path, model: Path, *, lora: bool, steps: int | None = None) -> TrainingConfig:
    """The run, with sizes for two CPU cores and under two minutes; its data lie in `data` of the output folder."""
    data = output / "data"
    steps = steps or (ADAPTER_STEPS if lora else STEPS)
    return TrainingConfig(
        output=str(output),
        stage="sft",
        model=ModelSection(source=str(model)),
        data=DataSection(
            train=[SourceSection(path=str(data / TRAIN))],
            validation=[SourceSection(path=str(data / HELD_OUT))],
            sequence_length=256,
            chat_template="plain",
        ),
        lora=LoraSection(rank=16, alpha=32.0) if lora else None,
        train=TrainSection(
            steps=steps,
            global_batch_size=4,
            micro_batch_size=2,
            lr=1e-2 if lora else 6e-3,
            warmup_steps=min(30, steps),
            validate_every=max(steps // 2, 1),
        ),
        logging=LoggingSection(every=50),
    )


def quickstart_sft(output: Path, model: Path, *, lora: bool = False, steps: int | None = None) -> None:
    """Fine-tune `model` into `output` and show what came of it. Collective over ranks.

    Args:
        output: the run folder; its `data` folder holds what `write_quickstart_questions` writes.
        model: a Hugging Face folder.
        lora: whether to train adapters only.
        steps: of the run; None: as many as it takes to answer better than by chance, more for adapters.
    """
    place = RankPlace.from_env()
    config = quickstart_sft_config(output, model, lora=lora, steps=steps)
    checked(Loaded(config, [], frozenset()), place.world_size)
    progress = train_stage(config)
    if place.rank == 0:
        _show(config, progress)


def _show(config: TrainingConfig, progress: Progress) -> None:
    folder = RunFolder(Path(config.output))
    device = select(config.device).device.bind(0)
    before = open_for_inference(config.model.source, device)
    written = folder.adapter if config.lora is not None else folder.hf
    after = (
        open_for_inference(config.model.source, device, adapter=written)
        if config.lora
        else open_for_inference(written, device)
    )
    question = _shown_question()
    print(f"\na question that was held out: {question}")
    for name, model in (("before", before), ("after", after)):
        print(f"{name}: {_answer(config, model, question)}")
    assert progress.first_val_loss is not None
    assert progress.last_val_loss is not None
    swapped_loss = held_out_loss(config, after, folder.root / "data" / SWAPPED)
    print(f"\n{Outcome(progress.first_val_loss, progress.last_val_loss, swapped_loss)}, written to {written}")


def _shown_question() -> str:
    """The held-out question whose answer is shown: one about a method, which resembles what was trained on."""
    _, held_out = python_questions()
    return next(each.question for each in held_out if each.question.startswith("What does "))


def _answer(config: TrainingConfig, model: OpenedModel, question: str) -> str:
    renderer = conversation_encoder(config, model.tokenizer).renderer
    prompt = renderer.prompt([{"role": "user", "content": question}])
    (written,) = generate(model, [prompt], Sampling(), max_new_tokens=150, rendered=True)
    return " ".join(written.text.split())


@torch.inference_mode()
def held_out_loss(config: TrainingConfig, model: OpenedModel, path: Path) -> float:
    """Nats a token of what the assistant says in the conversations of `path`, prepared as the run's are."""
    source = [SourceSection(path=str(path))]
    data = config.data.model_copy(update={"train": source, "validation": source})
    cache = cache_folder(config, Path(config.output))
    settings = conversation_settings(config.model_copy(update={"data": data}), cache)
    held_out = open_conversations(settings, conversation_encoder(config, model.tokenizer)).held_out()
    assert held_out is not None
    total, tokens = 0.0, 0
    for batch in held_out.microbatches(micro_batch_size=config.train.micro_batch_size):
        total += model.decoder(batch.to(model.device)).sum(dtype=torch.float64).item()
        tokens += int((batch.labels != IGNORED_LABEL).sum())
    return total / tokens
