"""Pretraining, and continued pretraining: predict the next token of documents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from loong_core.checkpoint.hf_export import export_hf
from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.data.corpus import Corpus, CorpusSettings, open_corpus
from loong_core.data.corpus import Progress as TokenizingProgress
from loong_core.data.sources import SourceSpec
from loong_core.engine.base import Engine, LossTerms
from loong_core.engine.choice import build_engine, weights_dtype
from loong_core.train.loop import Progress, Work, train
from loong_core.train.run import Run, open_run
from loong_llm.model import ModelSource, build_stages, open_model
from loong_llm.recipes.pretrain_config import PretrainConfig
from loong_llm.tokenizer import HuggingFaceEncoder, load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def pretrain(config: PretrainConfig) -> Progress:
    """Run `config` on this rank, from its last checkpoint if it has one. Collective over all ranks.

    Leaves `hf/` in the run folder when the last step has been taken.
    """
    with open_run(config) as run:
        model = open_model(config.model.source, config.model.overrides)
        tokenizer = load_tokenizer(config.tokenizer, model.tokenizer_dir)
        changed = " with overrides" if config.model.overrides else ""
        run.say(f"model: {model.name}{changed}, {model.config.parameter_count():,} parameters, {config.precision}")

        corpus = open_corpus(corpus_settings(config, run.folder.root), HuggingFaceEncoder(tokenizer), _news(run))
        if run.place.rank == 0:
            for warning in corpus.warnings():
                run.say(f"warning: {warning}")
        dtype = weights_dtype(config.engine, run.engine_settings)
        stages = build_stages(model, run.context, dtype=dtype, initialise=config.model.initialise, seed=config.seed)
        engine = build_engine(
            config.engine,
            [stage.to(run.context.device) for stage in stages],
            model.weight_map,
            run.context,
            run.device,
            run.engine_settings,
            hidden_size=model.config.hidden_size,
        )
        work = _work(run, config, model, corpus, engine)
        run.say(
            f"data: {corpus_tokens(corpus):,} tokens to train on; {work.total_steps} steps of {work.tokens_per_step:,}"
        )
        progress = train(run, work)
        if progress.step == work.total_steps:
            _export(run, config, model, tokenizer, engine)
    return progress


def next_token_loss(model: nn.Module, batch: PackedBatch, hidden: Tensor | None) -> LossTerms | Tensor:
    """Summed cross-entropy of a microbatch's labels; on a pipeline stage without head its hidden states."""
    output = model(batch.to(next(model.parameters()).device, non_blocking=True), hidden)
    if model.head is None:
        return output
    return LossTerms(output.sum(), (batch.labels != IGNORED_LABEL).sum().to(output.device))


def corpus_settings(config: PretrainConfig, run_folder: Path) -> CorpusSettings:
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
        cache=Path(data.cache).expanduser() if data.cache else run_folder / "cache",
        workers=data.workers,
    )


def corpus_tokens(corpus: Corpus) -> int:
    """Tokens of the training documents."""
    return sum(store.total_tokens for source in corpus.train for store in source.stores)


def _work(run: Run, config: PretrainConfig, model: ModelSource, corpus: Corpus, engine: Engine) -> Work:
    settings, data = config.train, run.context.data
    stream = corpus.stream(
        global_batch_size=settings.global_batch_size,
        micro_batch_size=settings.micro_batch_size,
        data_rank=data.rank,
        data_size=data.size,
        vocab_size=model.config.vocab_size,
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

    return Work(
        engine=engine,
        stream=stream,
        forward_step=next_token_loss,
        total_steps=settings.steps or stream.steps_for(settings.epochs or 1),
        tokens_per_step=settings.global_batch_size * config.data.sequence_length,
        flops_per_token=model.config.flops_per_token(config.data.sequence_length),
        validation=validation if held_out is not None else None,
    )


def _export(
    run: Run, config: PretrainConfig, model: ModelSource, tokenizer: PreTrainedTokenizerBase, engine: Engine
) -> None:
    """Write `hf/`: weights in the run's precision, `config.json`, tokenizer, generation config."""
    hf_config: dict[str, Any] = dict(model.hf_config)
    if config.tokenizer is not None:
        for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
            hf_config[key] = getattr(tokenizer, key)
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        export_hf(
            run.folder.hf,
            hf_config,
            engine.weight_pieces(),
            run.context,
            run.dtype,
            Path(folder) if config.tokenizer is not None else None,
            companions=model.tokenizer_dir,
            replace=True,
        )
    run.say(f"model written to {run.folder.hf}")


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
