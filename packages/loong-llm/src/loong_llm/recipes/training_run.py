"""From an opened corpus and a model under its engine to a trained run: what every stage does alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Protocol

from loong_core.config.checks import step_faults
from loong_core.data.batch import PackedBatch
from loong_core.data.held_out import HeldOutRows
from loong_core.data.read_ahead import ReadAhead
from loong_core.data.stream import Stream
from loong_core.engine.base import ForwardStep
from loong_core.errors import ConfigError
from loong_core.train.loop import Progress, Work, train
from loong_core.train.run import Run
from loong_llm.recipes.trained_model import TrainedModel
from loong_llm.recipes.training_config import TrainingConfig


class OpenedCorpus(Protocol):
    """Documents or conversations, opened."""

    def stream(
        self,
        *,
        global_batch_size: int,
        micro_batch_size: int,
        data_rank: int = 0,
        data_size: int = 1,
        vocab_size: int | None = None,
    ) -> Stream:
        """The training stream of one data rank."""
        ...

    def held_out(self) -> HeldOutRows | None:
        """The held-out rows, None if there are none."""
        ...

    def warnings(self) -> list[str]:
        """What a user should know before the run."""
        ...

    def report(self) -> list[str]:
        """What there is to train on, in lines for people."""
        ...


def train_on(
    run: Run,
    config: TrainingConfig,
    model: TrainedModel,
    corpus: OpenedCorpus,
    forward_step: ForwardStep,
    between: Callable[[int], Callable[[int], None]] | None = None,
    export: Callable[[Path], None] | None = None,
) -> tuple[Progress, bool]:
    """Train as the run file says, from the last checkpoint if there is one. Collective.

    Args:
        run: whose folder and ranks.
        config: its configuration.
        model: what is trained.
        corpus: what on.
        forward_step: the loss.
        between: given the run's number of steps, makes what is called between them.
        export: writes the model as it is to a folder; None where that ends its training.

    Returns:
        How far the run is, and whether that is its end.

    Raises:
        ConfigError: the steps that `train.epochs` come to have no room for the schedule.
    """
    settings, data = config.train, run.context.data
    if run.place.rank == 0:
        for warning in corpus.warnings():
            run.say(f"warning: {warning}")
    stream = corpus.stream(
        global_batch_size=settings.global_batch_size,
        micro_batch_size=settings.micro_batch_size,
        data_rank=data.rank,
        data_size=data.size,
        vocab_size=model.source.config.vocab_size,
    )
    held_out = corpus.held_out()

    def validation() -> Iterator[list[PackedBatch]]:
        assert held_out is not None
        return held_out.steps(
            global_batch_size=settings.global_batch_size,
            micro_batch_size=settings.micro_batch_size,
            data_rank=data.rank,
            data_size=data.size,
            steps=settings.validation_steps,
        )

    total_steps = settings.steps or stream.steps_for(settings.epochs or 1)
    if settings.steps is None and (faults := step_faults(settings, total_steps)):
        raise ConfigError(faults)
    tokens_per_step = settings.global_batch_size * config.data.sequence_length
    run.say(f"{total_steps} steps of {tokens_per_step:,} tokens")
    with closing(ReadAhead(stream)) as steps:
        progress = train(
            run,
            Work(
                engine=model.engine,
                stream=steps,
                forward_step=forward_step,
                total_steps=total_steps,
                units_per_step=tokens_per_step,
                flops_per_unit=model.flops_per_token(config.data.sequence_length),
                validation=validation if held_out is not None else None,
                figures=stream.figures,
                between=between(total_steps) if between is not None else None,
                export=export,
            ),
        )
    return progress, progress.finished(total_steps)
