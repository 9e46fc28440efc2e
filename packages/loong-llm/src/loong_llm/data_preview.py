"""A run's data looked at before the run, where that takes seconds: what is warned of, and how long epochs are."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from loong_core.data.sources import resolve
from loong_core.parallel.layout import Layout
from loong_llm.model_config import read_model_config
from loong_llm.recipes.stage_data import open_stage_data
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.tokenizer import load_tokenizer

READ_BYTES = 16 << 20
"""Up to how many bytes of data are tokenised, or mapped, for a look."""


@dataclass(frozen=True)
class Preview:
    """What a look found: the warnings of the corpus, and the run's steps."""

    warnings: list[str]
    steps: int


def preview_data(config: TrainingConfig, world_size: int) -> Preview | None:
    """Open the data of a run without faults as the run would, in a temporary cache; None where they are too many.

    Raises:
        UserError: what is wrong with the data, as the run would say it.
    """
    sources = [*config.data.train, *config.data.validation]
    if sum(file.size for source in sources for file in resolve(source.path)) > READ_BYTES:
        return None
    model = read_model_config(config.model.source, config.model.overrides)
    tokenizer = load_tokenizer(config.tokenizer, model.folder)
    with TemporaryDirectory() as folder:
        corpus = open_stage_data(config, tokenizer, Path(folder))
        train = config.train
        stream = corpus.stream(
            global_batch_size=train.global_batch_size,
            micro_batch_size=train.micro_batch_size,
            data_size=Layout(**config.layout.model_dump()).data_for(world_size),
        )
        return Preview(corpus.warnings(), train.steps or stream.steps_for(train.epochs or 1))
