"""The first sequences of a run's training data, for people: what `loong-vlm inspect-data` shows."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from loong_core.config.files import user_path
from loong_llm.tokenizer import load_tokenizer
from loong_vlm.data.inspection import inspect_vision_batches
from loong_vlm.recipes.fine_tuning import open_run_corpus, open_run_model, vision_encoder
from loong_vlm.recipes.training_config import VisionTrainingConfig


def first_sequences(config: VisionTrainingConfig, count: int) -> Iterator[Text]:
    """Lines about the data, then the run's first sequences in the order in which it trains on them.

    Args:
        config: the run; what its cache lacks is written there.
        count: how many sequences; fewer if an epoch has fewer.

    Raises:
        UserError: what is wrong with the data.
    """
    source = open_run_model(config)
    tokenizer = load_tokenizer(config.tokenizer, source.tokenizer_dir)
    encoder = vision_encoder(config, source, tokenizer)
    corpus = open_run_corpus(config, source, encoder, user_path(config.output))
    try:
        for line in [*corpus.report(), *(f"warning: {each}" for each in corpus.warnings())]:
            yield Text(line)
        held = corpus.stream(global_batch_size=1, micro_batch_size=1).samples_per_epoch
        stream = corpus.stream(
            global_batch_size=min(count, held), micro_batch_size=1, vocab_size=source.config.vocab_size
        )
        yield from inspect_vision_batches(stream.next_step(), tokenizer)
    finally:
        corpus.close()
