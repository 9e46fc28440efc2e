"""What tower and projector add to a plan of the language model: a bound worked out from their shapes.

Within the language model's first stage the tensor and context ranks share a microbatch's images. Apart from it
(`encoder` in the run file) the ranks of all stages do, a microbatch a lane, and keep what backward needs of a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt, prod

from loong_core.parallel.layout import Layout
from loong_core.plan.devices import Accelerator
from loong_vlm.parts import Grid, ModelParts
from loong_vlm.recipes.training_config import VisionTrainingConfig, encoder_layout

_REACHED = 0.4
"""Share of an accelerator's peak that a tower's products reach."""

KEPT_OF_BLOCK = 18
"""What a block keeps for backward, in widths of its residual stream: two norms' inputs and outputs, queries, keys and
values, queries and keys as rotated, the mixed ones, the feed-forward's inner activations (eight widths together)."""


@dataclass(frozen=True)
class VisionShare:
    """What tower and projector are to one rank.

    Attributes:
        state: bytes of weights, gradients and optimizer state.
        kept: bytes that wait for backward, of images that fill every sequence.
        features: bytes of a step's features on a rank of the first stage, that wait for their microbatch; 0 where each
            microbatch is encoded in its turn, or they wait on the host.
        seconds: of encoding a microbatch of images only and its backward, with all ranks that share them at work.
    """

    state: float
    kept: float
    features: float
    seconds: float


def vision_share(
    config: VisionTrainingConfig, parts: ModelParts, layout: Layout, accelerator: Accelerator, world_size: int
) -> VisionShare:
    """Of a rank that has them, by the run file and a layout of the language model on `world_size` ranks."""
    section, frozen = config.encoder, config.frozen_parts()
    own = layout if section is None else encoder_layout(section)
    precision = (section and section.precision) or config.precision
    width = 2.0 if precision == "bf16" else 4.0
    shard, tensor = own.shard_for(world_size), 1 if section is None else own.tensor
    state = 0.0
    for name, count in (
        ("tower", parts.tower.parameter_count() / tensor),
        ("projector", parts.projector.parameter_count()),
    ):
        trained = 0.0 if name in frozen or config.lora is not None else 4.0 + 12.0 / shard
        state += count * (width + trained)

    ranks = layout.model if section is not None else layout.tensor * layout.context
    grid = _grid_of(config.train.micro_batch_size * config.data.sequence_length, parts)
    adapted = config.lora is not None and "tower" in config.lora.parts
    learns = "tower" not in frozen and (config.lora is None or adapted)
    recompute = (config.recompute if section is None else section.recompute).parts
    backward = 2 - adapted + recompute.everything if learns else 0  # in forwards; adapters need no weights' gradients
    seconds = parts.image_flops(grid) * (1 + backward) / ranks / (_REACHED * getattr(accelerator, precision))

    microbatches = max(
        1, config.train.global_batch_size // config.train.micro_batch_size // layout.data_for(world_size)
    )
    at_once = min(microbatches, layout.pipeline) if section is None else microbatches
    inputs = parts.tower.num_layers * (1 if recompute.everything else KEPT_OF_BLOCK)
    kept = width * prod(grid) * parts.tower.width * inputs * at_once / ranks if learns else 0.0
    waiting = 0.0
    if section is not None and not section.offload_features:
        rows = prod(parts.projector.feature_grid(grid)) * (1 + parts.projector.deep)
        own_width = 2.0 if config.precision == "bf16" else 4.0
        waiting = own_width * rows * parts.projector.hidden_size * microbatches / (layout.tensor * layout.context)
    return VisionShare(state, kept, waiting, seconds)


def _grid_of(features: int, parts: ModelParts) -> Grid:
    """Images of about a thousand features each, as one of many frames."""
    frames, rows, columns = parts.tower.smallest
    one = prod(parts.projector.feature_grid((frames, rows, columns)))
    times = max(1, isqrt(1024 // one)) if parts.tower.faults((1, 2 * rows, 2 * columns)) is None else 1
    own = prod(parts.projector.feature_grid((1, rows * times, columns * times)))
    return max(1, features // own), rows * times, columns * times
