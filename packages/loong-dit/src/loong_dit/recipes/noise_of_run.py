"""From a run file's sections to noise levels, and to how stored samples become batches."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from loong_core.data.shuffle import permutation
from loong_dit.data.assembly import Noising
from loong_dit.data.cache import LatentCache
from loong_dit.data.manifest import Manifest
from loong_dit.data.sample_source import SampleSource
from loong_dit.flow.timesteps import TimestepDistribution
from loong_dit.model_source import ModelSource, open_source
from loong_dit.recipes.training_config import DiffusionTrainingConfig

_HELD_OUT_KEY = 7


@dataclass(frozen=True)
class RunNoise:
    """How a run's samples are noised.

    Attributes:
        only: for the transformer that is trained, of two for that of low noise.
        high: for that of high noise where both are trained, else None.
        high_share: of all levels, those of the latter; None where one is trained.
    """

    only: Noising
    high: Noising | None = None
    high_share: float | None = None


def model_of(config: DiffusionTrainingConfig) -> ModelSource:
    """The `model` section's source, of both experts where it has two; raises what `open_source` raises."""
    model = config.model
    return open_source(model.source, model.overrides, text_length=model.text_length)


def levels_of(config: DiffusionTrainingConfig) -> TimestepDistribution:
    """The `flow` section as noise levels."""
    flow = config.flow
    low, high = flow.range
    return TimestepDistribution(flow.timesteps, flow.shift, flow.mean, flow.std, low, high, flow.weighting)


def noise_of(config: DiffusionTrainingConfig, source: ModelSource, manifest: Manifest) -> RunNoise:
    """How a run's samples become batches, for each expert in its own range.

    Args:
        config: the run's.
        source: the whole model, of both experts where it has two.
        manifest: of the cache.
    """
    levels = levels_of(config)
    first_frame = config.model.condition_share if config.model.condition == "first_frame" else 0.0
    noising = Noising(
        form=source.family.patch_form(source.config),
        manifest=manifest,
        seed=config.seed,
        levels=levels,
        caption_dropout=config.data.caption_dropout,
        text_length=source.text_length,
        first_frame=first_frame,
        clean_references=source.clean_references,
    )
    if source.boundary is None:
        return RunNoise(noising)
    boundary = min(max(source.boundary, levels.low), levels.high)
    low = replace(noising, levels=replace(levels, high=boundary))
    high = replace(noising, levels=replace(levels, low=boundary))
    if config.model.expert == "both":
        return RunNoise(low, high, 1 - levels.share_below(boundary))
    return RunNoise(high if config.model.expert == "high" else low)


def held_out_of(
    config: DiffusionTrainingConfig, cache: SampleSource
) -> tuple[list[int], SampleSource | None, list[int]]:
    """Samples to train on, the source of those held out (None if there are none), and which these are."""
    if config.data.validation is not None:
        other = LatentCache(Path(config.data.validation).expanduser())
        return list(range(len(cache))), other, list(range(len(other)))
    count = round(config.data.validation_fraction * len(cache))
    if count == 0:
        return list(range(len(cache))), None, []
    order = permutation(len(cache), config.seed, _HELD_OUT_KEY).tolist()
    return sorted(order[count:]), cache, sorted(order[:count])
