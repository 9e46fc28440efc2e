"""Training on conversations with images: predict what the assistant says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from loong_core.config.files import user_path
from loong_core.errors import UserError
from loong_core.train.loop import Progress
from loong_core.train.run import Run, open_run
from loong_llm.conversations.encoding import RenderSettings
from loong_llm.conversations.preparation import PreparationCount
from loong_llm.recipes.next_token import next_token_loss
from loong_llm.recipes.trained_model import export
from loong_llm.recipes.training_run import train_on
from loong_llm.tokenizer import load_tokenizer
from loong_vlm.balance.balancer import Balancer
from loong_vlm.data.arrangement import arrange
from loong_vlm.data.corpus import VisionCorpus, VisionSettings, VisionSource, open_vision_corpus
from loong_vlm.data.encoding import VisionEncoder
from loong_vlm.data.pixels.hugging_face import read_pixel_processor
from loong_vlm.data.pixels.processor import PixelProcessor
from loong_vlm.data.placeholders import FeatureRuns
from loong_vlm.data.preparation import OnPrepared
from loong_vlm.recipes.encoder_apart import build_vision_model
from loong_vlm.recipes.starting_costs import starting_costs
from loong_vlm.recipes.trained_parts import lr_scale, with_chosen_parts
from loong_vlm.recipes.training_config import VisionSourceSection, VisionTrainingConfig
from loong_vlm.source import VisionModelSource, open_vision_model

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def fine_tune(config: VisionTrainingConfig) -> Progress:
    """Run `config` on this rank, from its last checkpoint if it has one. Collective over all ranks.

    Leaves `hf/`, or `adapter/`, in the run folder when the last step has been taken, with tokenizer and processor.
    """
    with open_run(config) as run:
        source = open_run_model(config)
        tokenizer = load_tokenizer(config.tokenizer, source.tokenizer_dir)
        encoder = vision_encoder(config, source, tokenizer)
        run.say(source.described(config.precision, overridden=bool(config.model.overrides)))

        corpus = open_run_corpus(
            config,
            source,
            encoder,
            run.folder.root,
            on_prepared=_news(run),
            on_blank=lambda why, count: run.say(f"warning: image {count} that this rank shows blank: {why}"),
        )
        try:
            for line in corpus.report():
                run.say(f"data: {line}")
            chosen = with_chosen_parts(config, source)
            settings = replace(run.engine_settings, lr_scale=lr_scale(config))
            model = build_vision_model(run, config, chosen, source, settings)
            progress, finished = train_on(run, chosen, model, corpus, next_token_loss)
            if finished:
                tokenizer.chat_template = encoder.text.renderer.template.text
                export(
                    run,
                    chosen,
                    model,
                    tokenizer,
                    encoder.text.end_of_turn_ids(),
                    processor=processor_dir(config, source),
                )
        finally:
            corpus.close()
    return progress


def open_run_model(config: VisionTrainingConfig) -> VisionModelSource:
    """The model that a run file names."""
    model = config.model
    return open_vision_model(
        model.source, model.overrides, tower=model.tower, projector=model.projector, language=model.language
    )


def open_run_corpus(
    config: VisionTrainingConfig,
    source: VisionModelSource,
    encoder: VisionEncoder,
    run_folder: Path,
    *,
    on_prepared: OnPrepared | None = None,
    on_blank: Callable[[str, int], None] | None = None,
) -> VisionCorpus:
    """The run's data, prepared into its cache where they are not there yet. Collective."""
    balancer = Balancer(starting_costs(source.parts)) if config.data.balance else None
    return open_vision_corpus(
        vision_settings(config, run_folder),
        encoder,
        partial(arrange, parts=source.parts),
        balancer=balancer,
        on_prepared=on_prepared,
        on_blank=on_blank,
    )


def processor_dir(config: VisionTrainingConfig, source: VisionModelSource) -> Path:
    """The folder whose preprocessor files say how images are read.

    Raises:
        UserError: the model is a named size, and no folder is named.
    """
    if config.processor is not None:
        return user_path(config.processor)
    if source.folder is not None:
        return source.folder
    raise UserError(
        f"processor: {source.name} is a named size, which does not say how images are read; name a folder with "
        "preprocessor_config.json"
    )


def pixel_processor(config: VisionTrainingConfig, source: VisionModelSource) -> PixelProcessor:
    """What turns images into patches, with the run's own bounds on their pixels.

    Raises:
        UserError: no folder tells, it makes other patches than the tower reads, or it takes no bounds.
    """
    folder = processor_dir(config, source)
    processor = read_pixel_processor(folder)
    bounds = {key: value for key in ("min_pixels", "max_pixels") if (value := getattr(config.data, key)) is not None}
    for key in bounds:
        if not hasattr(processor, key):
            raise UserError(f"data.{key} would be ignored: images are cut into tiles of one size; remove it")
    if bounds:
        processor = replace(processor, **bounds)  # type: ignore[type-var]
    if processor.patch_dim != source.parts.tower.patch_dim:
        raise UserError(
            f"processor: {folder} makes patches of {processor.patch_dim} numbers, the vision tower reads "
            f"{source.parts.tower.patch_dim}; name the folder of a model with this tower"
        )
    return processor


def vision_encoder(
    config: VisionTrainingConfig, source: VisionModelSource, tokenizer: PreTrainedTokenizerBase
) -> VisionEncoder:
    """What turns conversations into tokens and grids, as the `data` section says.

    Raises:
        UserError: no such template, or a tokenizer or processor that cannot serve.
    """
    data, parts = config.data, source.parts
    settings = RenderSettings(data.chat_template, data.template_variables, data.train_on)
    runs = FeatureRuns(parts.projector, parts.meeting.positions)
    encoder = VisionEncoder(tokenizer, settings, parts.meeting.layout, pixel_processor(config, source), runs)
    for token, number in encoder.placeholder_ids.items():
        if number not in parts.meeting.placeholders:
            raise UserError(
                f"tokenizer: {token} is {number}, but the model's config.json has {list(parts.meeting.placeholders)} "
                "in the place of images; use the model's own tokenizer, or set the ids in model.overrides"
            )
    return encoder


def vision_settings(config: VisionTrainingConfig, run_folder: Path) -> VisionSettings:
    """The `data` section as the corpus takes it."""
    data = config.data
    return VisionSettings(
        train=vision_sources(data.train),
        cache=user_path(data.cache) if data.cache else run_folder / "cache",
        sequence_length=data.sequence_length,
        patch_budget=data.patch_budget,
        validation=vision_sources(data.validation),
        validation_fraction=data.validation_fraction,
        bad_samples=data.bad_samples,
        long_samples=data.long_samples,
        packing=data.packing,
        seed=config.seed,
        workers=data.workers,
        threads=data.threads,
    )


def vision_sources(sources: list[VisionSourceSection]) -> tuple[VisionSource, ...]:
    """Sources of a run file as the corpus takes them."""
    return tuple(VisionSource(each.path, each.weight, each.format, each.fields, each.media_root) for each in sources)


def _news(run: Run) -> OnPrepared:
    """Tells of preparation that takes long, every ten seconds."""
    last = monotonic()

    def tell(source: str, count: PreparationCount) -> None:
        nonlocal last
        if monotonic() - last >= 10:
            last = monotonic()
            run.say(f"preparing {source}: {count.records:,} records, {count.tokens:,} tokens")

    return tell
