"""What tower and projector add to a plan of the language model: a bound worked out from their shapes."""

from __future__ import annotations

from math import isqrt, prod

from loong_core.parallel.layout import Layout
from loong_core.plan.devices import Accelerator
from loong_vlm.parts import Grid, ModelParts
from loong_vlm.recipes.training_config import VisionTrainingConfig

_REACHED = 0.4
"""Share of an accelerator's peak that a tower's products reach."""


def vision_bytes(config: VisionTrainingConfig, parts: ModelParts, layout: Layout, world_size: int) -> float:
    """Bytes of weights, gradients and optimizer state of tower and projector on a rank of the first stage."""
    frozen = config.frozen_parts()
    shard = layout.shard_for(world_size)
    total = 0.0
    for name, part in (("tower", parts.tower), ("projector", parts.projector)):
        weights = 2.0 if config.precision == "bf16" else 4.0
        trained = 0.0 if name in frozen or config.lora is not None else 4.0 + 12.0 / shard
        total += part.parameter_count() * (weights + trained)
    return total


def vision_seconds(config: VisionTrainingConfig, parts: ModelParts, accelerator: Accelerator, ranks: int) -> float:
    """Seconds of encoding, and its backward, of a microbatch of images only, shared by `ranks` ranks."""
    grid = _grid_of(config.train.micro_batch_size * config.data.sequence_length, parts)
    trained = "tower" not in config.frozen_parts() and config.lora is None
    flops = parts.image_flops(grid) * (3 if trained else 1)
    return flops / ranks / (_REACHED * getattr(accelerator, config.precision))


def _grid_of(features: int, parts: ModelParts) -> Grid:
    """Images of about a thousand features each, as one of many frames."""
    frames, rows, columns = parts.tower.smallest
    one = prod(parts.projector.feature_grid((frames, rows, columns)))
    times = max(1, isqrt(1024 // one)) if parts.tower.faults((1, 2 * rows, 2 * columns)) is None else 1
    own = prod(parts.projector.feature_grid((1, rows * times, columns * times)))
    return max(1, features // own), rows * times, columns * times
