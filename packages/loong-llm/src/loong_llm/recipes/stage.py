"""The one recipe of language models: predict the next token, of documents, of what the assistant says, or of both.

What the stages differ in is the data (`loong_llm.recipes.stage_data`): pretraining, and continued pretraining, reads
documents; supervised fine-tuning reads conversations and leaves their chat template; mid-training blends the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loong_core.train.loop import Progress
from loong_core.train.run import open_run
from loong_llm.model import open_model
from loong_llm.recipes.next_token import next_token_loss
from loong_llm.recipes.samples import sample_writer
from loong_llm.recipes.stage_data import cache_folder, conversation_encoder, open_stage_data
from loong_llm.recipes.trained_model import build_trained_model, export
from loong_llm.recipes.training_config import TrainingConfig
from loong_llm.recipes.training_run import train_on
from loong_llm.source_kinds import heeds
from loong_llm.tokenizer import load_tokenizer


def train_stage(config: TrainingConfig) -> Progress:
    """Run `config` on this rank, from its last checkpoint if it has one. Collective over all ranks.

    Leaves `hf/`, or `adapter/`, in the run folder when the last step has been taken; where conversations were trained
    on, with their chat template and the ids at which generation stops.
    """
    with open_run(config) as run:
        source = open_model(config.model.source, config.model.overrides)
        tokenizer = load_tokenizer(config.tokenizer, source.tokenizer_dir)
        run.say(source.described(config.precision, overridden=bool(config.model.overrides)))

        corpus = open_stage_data(config, tokenizer, cache_folder(config, run.folder.root), run.say)
        for line in corpus.report():
            run.say(f"data: {line}")
        model = build_trained_model(run, config, source)
        samples = sample_writer(run, config, model, tokenizer)
        end_of_turn: Sequence[int] = ()
        if heeds(config, "conversations"):
            encoder = conversation_encoder(config, tokenizer)
            tokenizer.chat_template = encoder.renderer.template.text
            end_of_turn = encoder.end_of_turn_ids()

        def write(folder: Path | None = None) -> None:
            export(run, config, model, tokenizer, end_of_turn, folder=folder)

        merges = config.lora is not None and config.lora.merge  # which ends the training of the adapters
        progress, finished = train_on(run, config, model, corpus, next_token_loss, samples, None if merges else write)
        if finished:
            write()
    return progress
