"""Supervised fine-tuning: predict what the assistant says in conversations."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from loong_core.config.files import user_path
from loong_core.train.loop import Progress
from loong_core.train.run import Run, open_run
from loong_llm.conversations.corpus import (
    ConversationCorpus,
    ConversationSettings,
    ConversationSource,
    OnPrepared,
    open_conversations,
)
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.preparation import PreparationCount
from loong_llm.model import open_model
from loong_llm.recipes.next_token import next_token_loss
from loong_llm.recipes.trained_model import build_trained_model, export
from loong_llm.recipes.training_config import SourceSection, TrainingConfig
from loong_llm.recipes.training_run import train_on
from loong_llm.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def sft(config: TrainingConfig) -> Progress:
    """Run `config` on this rank, from its last checkpoint if it has one. Collective over all ranks.

    Leaves `hf/`, or `adapter/`, in the run folder when the last step has been taken, with the chat template.
    """
    with open_run(config) as run:
        source = open_model(config.model.source, config.model.overrides)
        tokenizer = load_tokenizer(config.tokenizer, source.tokenizer_dir)
        encoder = conversation_encoder(config, tokenizer)
        run.say(source.described(config.precision, overridden=bool(config.model.overrides)))

        corpus = open_conversations(conversation_settings(config, run.folder.root), encoder, _news(run))
        for line in [*trained_share(corpus), *corpus.packing_report()]:
            run.say(f"data: {line}")
        model = build_trained_model(run, config, source)
        progress, finished = train_on(run, config, model, corpus, next_token_loss)
        if finished:
            tokenizer.chat_template = encoder.renderer.template.text
            export(run, config, model, tokenizer, encoder.end_of_turn_ids())
    return progress


def conversation_encoder(config: TrainingConfig, tokenizer: PreTrainedTokenizerBase) -> ConversationEncoder:
    """What turns conversations into tokens, as the `data` section says.

    Raises:
        UserError: no such template, or a tokenizer that cannot serve.
    """
    data = config.data
    return ConversationEncoder(tokenizer, RenderSettings(data.chat_template, data.template_variables, data.train_on))


def conversation_settings(config: TrainingConfig, run_folder: Path) -> ConversationSettings:
    """The `data` section as the conversations' corpus takes it."""
    data = config.data
    return ConversationSettings(
        train=conversation_sources(data.train),
        cache=user_path(data.cache) if data.cache else run_folder / "cache",
        sequence_length=data.sequence_length,
        validation=conversation_sources(data.validation),
        validation_fraction=data.validation_fraction,
        bad_samples=data.bad_samples,
        long_samples=data.long_samples,
        packing=data.packing,
        seed=config.seed,
        workers=data.workers,
    )


def conversation_sources(sources: Sequence[SourceSection]) -> tuple[ConversationSource, ...]:
    """Sources of a run file as sources of conversations."""
    return tuple(ConversationSource(each.path, each.weight, each.format, each.fields) for each in sources)


def trained_share(corpus: ConversationCorpus) -> list[str]:
    """A line for each training source: its samples, and how many of their tokens are trained on."""
    return [
        f"{part.source.path}: {part.count.samples:,} samples of {part.count.records:,} records, "
        f"{part.count.trained_tokens:,} of {part.count.tokens:,} tokens trained on"
        for part in corpus.train
    ]


def _news(run: Run) -> OnPrepared:
    """Tells of preparation that takes long, every ten seconds."""
    last = monotonic()

    def tell(source: str, count: PreparationCount) -> None:
        nonlocal last
        if monotonic() - last >= 10:
            last = monotonic()
            run.say(f"preparing {source}: {count.records:,} records, {count.tokens:,} tokens")

    return tell
