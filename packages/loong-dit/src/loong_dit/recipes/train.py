"""Training a diffusion transformer, on a latent cache or on media that are encoded as they are asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from loong_core.data.read_ahead import ReadAhead
from loong_core.train.loop import Progress, Work, train
from loong_core.train.run import Run, open_run
from loong_dit.batch import DiffusionBatch
from loong_dit.data.cache import LatentCache
from loong_dit.data.sample_source import SampleSource
from loong_dit.data.stream import LatentStream, held_out_steps
from loong_dit.flow.loss import velocity_loss
from loong_dit.model_source import ModelSource
from loong_dit.recipes.noise_of_run import RunNoise, held_out_of, model_of, noise_of
from loong_dit.recipes.online_samples import OnlineSamples, open_online, plan_online
from loong_dit.recipes.run_samples import RunSamples
from loong_dit.recipes.trained_model import build_trained_model, export
from loong_dit.recipes.training_config import DiffusionTrainingConfig


def train_diffusion(config: DiffusionTrainingConfig) -> Progress:
    """Run `config` on this rank, from its last checkpoint if it has one. Collective over all ranks.

    Leaves `hf/` in the run folder when the last step has been taken.
    """
    with open_run(config) as run:
        whole = model_of(config)
        source = whole.of_expert(config.model.expert)
        cache = _open_samples(run, config, whole)
        parameters = source.experts * source.family.parameter_count(source.config)
        run.say(f"model: {source.name}, {parameters:,} parameters, {config.precision}")
        noise = noise_of(config, whole, cache.manifest)
        trained_on, held_out, held_out_samples = held_out_of(config, cache)
        run.say(f"data: {len(trained_on):,} samples to train on, {len(held_out_samples):,} held out")
        stream = _stream(run, config, cache, trained_on, noise)
        model = build_trained_model(run, config, source)

        def validation() -> Iterator[list[DiffusionBatch]]:
            assert held_out is not None
            return held_out_steps(
                held_out,
                held_out_samples,
                noise.only,
                global_batch_size=config.train.global_batch_size,
                micro_batch_size=config.train.micro_batch_size,
                data_rank=run.context.data.rank,
                data_size=run.context.data.size,
                steps=config.train.validation_steps,
                high_noising=noise.high,
            )

        total_steps = config.train.steps or stream.steps_for(config.train.epochs or 1)
        run.say(f"{total_steps} steps of {config.train.global_batch_size} samples")
        draw = None
        if config.samples is not None:
            draw = RunSamples(run, config, source, model.engine, cache, total_steps)

        def between(step: int) -> None:
            if isinstance(cache, OnlineSamples) and step and (step % config.logging.every == 0 or step == total_steps):
                run.say(cache.told())
            if draw is not None:
                draw(step)

        with closing(ReadAhead(stream)) as steps:
            progress = train(
                run,
                Work(
                    engine=model.engine,
                    stream=steps,
                    forward_step=velocity_loss,
                    total_steps=total_steps,
                    units_per_step=config.train.global_batch_size,
                    flops_per_unit=flops_per_sample(source, cache, adapters_only=config.lora is not None),
                    validation=validation if held_out_samples else None,
                    unit="samples",
                    between=between,
                ),
            )
        if progress.finished(total_steps):
            export(run, config, model)
    return progress


def _open_samples(run: Run, config: DiffusionTrainingConfig, whole: ModelSource) -> SampleSource:
    """The cache, or what encodes the listed media on this rank's device."""
    online = config.data.online
    if online is None:
        assert config.data.cache
        return LatentCache(Path(config.data.cache).expanduser())
    begin = time.perf_counter()
    opened = open_online(online, whole, run.context.device, plan_online(online, whole))
    assert opened.encoder is not None
    run.say(
        f"encoded online by {opened.manifest.vae['name']} and {opened.manifest.text_encoder['name']}: "
        f"{opened.encoder.weight_bytes / 2**30:.2f} GiB of weights on {run.context.device.type}, opened in "
        f"{time.perf_counter() - begin:.1f} s"
    )
    for line in opened.left_out[:20]:
        run.say(f"left out: {line}")
    return opened


def flops_per_sample(source: ModelSource, cache: SampleSource, *, adapters_only: bool = False) -> float:
    """Of forward and backward, on average over the cache; with adapters no gradient of other weights is computed."""
    form = source.family.patch_form(source.config)
    total = 0.0
    for each in cache.samples:
        tokens = form.tokens(each.size) + sum(form.tokens((1, *size)) for size in each.references)
        text = source.text_length or each.text_tokens
        total += source.config.flops_per_sample(tokens, text, weight_gradients=not adapters_only)
    return total / len(cache)


def _stream(
    run: Run, config: DiffusionTrainingConfig, cache: SampleSource, samples: list[int], noise: RunNoise
) -> LatentStream:
    return LatentStream(
        cache,
        samples,
        noise.only,
        batching=config.data.batching,
        global_batch_size=config.train.global_batch_size,
        micro_batch_size=config.train.micro_batch_size,
        data_rank=run.context.data.rank,
        data_size=run.context.data.size,
        high_noise_share=noise.high_share,
        high_noising=noise.high,
    )
