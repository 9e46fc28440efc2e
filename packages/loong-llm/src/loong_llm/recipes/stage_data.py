"""A run's data opened as its stage asks for: documents, conversations, or both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from loong_core.config.files import user_path
from loong_core.data.blend_plan import WeightPoint
from loong_core.data.corpus import Corpus, CorpusSettings, open_corpus
from loong_core.data.corpus import Progress as TokenizingProgress
from loong_core.data.sources import SourceSpec, weights_of
from loong_llm.conversations.corpus import (
    ConversationCorpus,
    ConversationSettings,
    ConversationSource,
    open_conversations,
)
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.preparation import PreparationCount
from loong_llm.data.mixed_corpus import MixedCorpus
from loong_llm.recipes.training_config import SourceSection, TrainingConfig
from loong_llm.source_kinds import kind_of, of_kind
from loong_llm.tokenizer import HuggingFaceEncoder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Say = Callable[[str], None]
"""Takes a line of news."""


def open_stage_data(
    config: TrainingConfig, tokenizer: PreTrainedTokenizerBase, cache: Path, say: Say | None = None
) -> Corpus | ConversationCorpus | MixedCorpus:
    """Open the data of a run. Collective over the default process group, if there is one.

    Args:
        config: the run.
        tokenizer: reads documents and conversations.
        cache: folder for token ids.
        say: told of preparation that takes long, on rank 0.

    Raises:
        UserError: what is wrong with the data, the tokenizer or the chat template, on every rank.
    """
    if config.stage == "pretrain":
        return _documents(config, tokenizer, cache, say)
    if config.stage == "sft":
        return _conversations(config, tokenizer, cache, say)
    sources = config.data.train
    return MixedCorpus(
        _documents(config, tokenizer, cache, say) if of_kind(config, sources, "documents") else None,
        _conversations(config, tokenizer, cache, say) if of_kind(config, sources, "conversations") else None,
        [kind_of(source) == "conversations" for source in sources],
        weights_of(sources),
        blend_schedule(config),
    )


def cache_folder(config: TrainingConfig, run_folder: Path) -> Path:
    """Where a run keeps its token ids."""
    return user_path(config.data.cache) if config.data.cache else run_folder / "cache"


def corpus_settings(config: TrainingConfig, cache: Path) -> CorpusSettings:
    """The documents of the `data` section as the data layer takes them."""
    data = config.data
    train, validation = (of_kind(config, sources, "documents") for sources in (data.train, data.validation))
    return CorpusSettings(
        train=tuple(SourceSpec(source.path, source.weight) for source in train),
        validation=tuple(SourceSpec(source.path, source.weight) for source in validation),
        validation_fraction=data.validation_fraction,
        text_key=data.text_key,
        sequence_length=data.sequence_length,
        attend_across_documents=data.attend_across_documents,
        seed=config.seed,
        cache=cache,
        workers=data.workers,
        blend_schedule=blend_schedule(config),
    )


def conversation_settings(config: TrainingConfig, cache: Path) -> ConversationSettings:
    """The conversations of the `data` section as their corpus takes them."""
    data = config.data
    return ConversationSettings(
        train=conversation_sources(of_kind(config, data.train, "conversations")),
        cache=cache,
        sequence_length=data.sequence_length,
        validation=conversation_sources(of_kind(config, data.validation, "conversations")),
        validation_fraction=data.validation_fraction,
        bad_samples=data.bad_samples,
        long_samples=data.long_samples,
        packing=data.packing,
        seed=config.seed,
        workers=data.workers,
        blend_schedule=blend_schedule(config),
    )


def conversation_encoder(config: TrainingConfig, tokenizer: PreTrainedTokenizerBase) -> ConversationEncoder:
    """What turns conversations into tokens, as the `data` section says.

    Raises:
        UserError: no such template, or a tokenizer that cannot serve.
    """
    data = config.data
    return ConversationEncoder(tokenizer, RenderSettings(data.chat_template, data.template_variables, data.train_on))


def conversation_sources(sources: Sequence[SourceSection]) -> tuple[ConversationSource, ...]:
    """Sources of a run file as sources of conversations."""
    return tuple(
        ConversationSource(each.path, each.weight, None if each.format == "documents" else each.format, each.fields)
        for each in sources
    )


def blend_schedule(config: TrainingConfig) -> tuple[WeightPoint, ...]:
    """The schedule of the sources' weights, empty if they stay."""
    return tuple(WeightPoint(point.step, tuple(point.weights)) for point in config.data.blend_schedule)


def _documents(config: TrainingConfig, tokenizer: PreTrainedTokenizerBase, cache: Path, say: Say | None) -> Corpus:
    tell = _every_ten_seconds(say)

    def news(progress: TokenizingProgress) -> None:
        share = progress.done_bytes / max(progress.total_bytes, 1)
        tell(f"tokenising {progress.source}: {share:.0%}, {progress.tokens:,} tokens")

    return open_corpus(corpus_settings(config, cache), HuggingFaceEncoder(tokenizer), news)


def _conversations(
    config: TrainingConfig, tokenizer: PreTrainedTokenizerBase, cache: Path, say: Say | None
) -> ConversationCorpus:
    tell = _every_ten_seconds(say)

    def news(source: str, count: PreparationCount) -> None:
        tell(f"preparing {source}: {count.records:,} records, {count.tokens:,} tokens")

    return open_conversations(conversation_settings(config, cache), conversation_encoder(config, tokenizer), news)


def _every_ten_seconds(say: Say | None) -> Say:
    """Says no more than a line in ten seconds, the first after as many."""
    last = monotonic()

    def tell(line: str) -> None:
        nonlocal last
        if say is not None and monotonic() - last >= 10:
            last = monotonic()
            say(line)

    return tell
