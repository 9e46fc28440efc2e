"""The first sequences of a run's training data, for people: what `loong-llm inspect-data` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from loong_core.config.files import user_path
from loong_llm.conversations.inspection import inspect_batches
from loong_llm.model import open_model
from loong_llm.recipes.stage_data import cache_folder, open_stage_data
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.tokenizer import load_tokenizer


def first_sequences(config: TrainingConfig, count: int) -> Iterator[Text]:
    """Lines about the data, then the run's first sequences in the order in which it trains on them.

    Args:
        config: the run; what its cache lacks is written there.
        count: how many sequences; fewer if an epoch has fewer.

    Raises:
        UserError: what is wrong with the data.
    """
    source = open_model(config.model.source, config.model.overrides)
    tokenizer = load_tokenizer(config.tokenizer, source.tokenizer_dir)
    corpus = open_stage_data(config, tokenizer, cache_folder(config, user_path(config.output)))
    for line in corpus.report():
        yield Text(line)
    for warning in corpus.warnings():
        yield Text(f"warning: {warning}")
    held = corpus.stream(global_batch_size=1, micro_batch_size=1).samples_per_epoch
    stream = corpus.stream(global_batch_size=min(count, held), micro_batch_size=1, vocab_size=source.config.vocab_size)
    yield from inspect_batches(stream.next_step(), tokenizer)
