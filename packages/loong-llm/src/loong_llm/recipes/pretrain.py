"""Pretraining, and continued pretraining: predict the next token of documents."""

from __future__ import annotations

from pathlib import Path
from time import monotonic
from typing import Any

from loong_core.config.files import user_path
from loong_core.data.corpus import Corpus, CorpusSettings, open_corpus
from loong_core.data.corpus import Progress as TokenizingProgress
from loong_core.data.sources import SourceSpec
from loong_core.train.loop import Progress
from loong_core.train.run import Run, open_run
from loong_llm.model import open_model
from loong_llm.recipes.next_token import next_token_loss
from loong_llm.recipes.trained_model import build_trained_model, export
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.recipes.training_run import train_on
from loong_llm.tokenizer import HuggingFaceEncoder, load_tokenizer


def pretrain(config: TrainingConfig) -> Progress:
    """Run `config` on this rank, from its last checkpoint if it has one. Collective over all ranks.

    Leaves `hf/`, or `adapter/`, in the run folder when the last step has been taken.
    """
    with open_run(config) as run:
        source = open_model(config.model.source, config.model.overrides)
        tokenizer = load_tokenizer(config.tokenizer, source.tokenizer_dir)
        run.say(source.described(config.precision, overridden=bool(config.model.overrides)))

        corpus = open_corpus(corpus_settings(config, run.folder.root), HuggingFaceEncoder(tokenizer), _news(run))
        run.say(f"data: {corpus_tokens(corpus):,} tokens to train on")
        model = build_trained_model(run, config, source)
        progress, finished = train_on(run, config, model, corpus, next_token_loss)
        if finished:
            export(run, config, model, tokenizer)
    return progress


def corpus_settings(config: TrainingConfig, run_folder: Path) -> CorpusSettings:
    """The `data` section as the data layer takes it."""
    data = config.data
    return CorpusSettings(
        train=tuple(SourceSpec(source.path, source.weight) for source in data.train),
        validation=tuple(SourceSpec(source.path, source.weight) for source in data.validation),
        validation_fraction=data.validation_fraction,
        text_key=data.text_key,
        sequence_length=data.sequence_length,
        attend_across_documents=data.attend_across_documents,
        seed=config.seed,
        cache=user_path(data.cache) if data.cache else run_folder / "cache",
        workers=data.workers,
    )


def corpus_tokens(corpus: Corpus) -> int:
    """Tokens of the training documents."""
    return sum(store.total_tokens for source in corpus.train for store in source.stores)


def _news(run: Run) -> Any:
    """Tells of tokenising that takes long, every ten seconds."""
    last = monotonic()

    def tell(progress: TokenizingProgress) -> None:
        nonlocal last
        if monotonic() - last >= 10:
            last = monotonic()
            share = progress.done_bytes / max(progress.total_bytes, 1)
            run.say(f"tokenising {progress.source}: {share:.0%}, {progress.tokens:,} tokens")

    return tell
