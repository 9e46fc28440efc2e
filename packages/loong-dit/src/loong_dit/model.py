"""Modules with weights from a model's source: one transformer, or two experts of which the noise chooses."""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt

import torch
from torch import Tensor, nn

from loong_core.checkpoint.hf_format import DIFFUSERS
from loong_core.checkpoint.hf_load import load_weights
from loong_core.checkpoint.hf_reader import HFFolder
from loong_core.checkpoint.pieces import Piece
from loong_core.checkpoint.weight_map import Rule, Span, WeightMap
from loong_core.errors import UserError
from loong_core.nn.initialize import initialize
from loong_core.parallel.context import ParallelContext
from loong_dit.batch import DiffusionBatch
from loong_dit.model_source import TRANSFORMERS, ModelSource

_HIGH, _LOW = "high", "low"


class Experts(nn.Module):
    """Two transformers of one size: one for timesteps at or above the boundary, one for those below.

    Every rank is given batches of the same expert at the same time, so that engines gather one expert's weights.
    """

    def __init__(self, high: nn.Module, low: nn.Module) -> None:
        super().__init__()
        self.high, self.low = high, low

    def forward(self, batch: DiffusionBatch) -> Tensor:
        """What the batch's expert says of each patch."""
        return self.high(batch) if batch.high_noise else self.low(batch)


def transformers_of(module: nn.Module) -> list[nn.Module]:
    """The transformer, or the two experts, of `build_module`'s module."""
    return [module.high, module.low] if isinstance(module, Experts) else [module]


def module_weight_map(source: ModelSource) -> WeightMap:
    """The parameters of `build_module`'s module; of two experts, names begin with the folder's: `transformer_2.`."""
    plain = source.family.weight_map(source.config)
    if source.experts == 1:
        return plain
    rules: list[Rule] = []
    for ours, theirs in zip((_HIGH, _LOW), TRANSFORMERS, strict=True):
        rules += _renamed(plain, f"{ours}.", lambda name, folder=theirs: f"{folder}.{name}")
    return WeightMap(rules)


def build_module(source: ModelSource, context: ParallelContext, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The module, its weights uninitialised."""
    built = [source.family.build(source.config, context, dtype) for _ in range(source.experts)]
    return built[0] if len(built) == 1 else Experts(*built)  # type: ignore[return-value]


def fill_module(
    module: nn.Module, source: ModelSource, context: ParallelContext, *, initialise: str = "auto", seed: int = 0
) -> None:
    """Load or draw the weights.

    Args:
        module: from `build_module`.
        source: its source.
        context: the one it was built with.
        initialise: `weights` loads them, `random` draws them, `auto` loads them if the model has any.
        seed: of the draw, which is the same for every layout.

    Raises:
        UserError: weights are wanted and there are none, or they are faulty.
    """
    if initialise == "random" or (initialise == "auto" and not source.has_weights):
        initialize(module, module_weight_map(source), context, seed, _standard_deviation)
        return
    if not source.has_weights:
        raise UserError(f"model {source.name} has a config and no weights to load: model.initialise=random draws them")
    weight_map = source.family.weight_map(source.config)
    if source.original:
        weight_map = WeightMap(_renamed(weight_map, "", source.family.original_name))
    for part, folder in zip(transformers_of(module), source.parts.values(), strict=True):
        assert folder is not None
        load_weights([part], weight_map, source.config.num_layers, context, HFFolder(folder, DIFFUSERS))


def _renamed(weight_map: WeightMap, prefix: str, theirs: Callable[[str], str]) -> list[Rule]:
    """The rules with our names behind a prefix, and the tensors' names changed."""
    return [
        Rule(
            f"{prefix}{rule.ours}",
            *(Span(theirs(span.name), span.shape, span.cut) for span in rule.spans),
            layers=rule.layers,
        )
        for rule in weight_map.rules
    ]


def _standard_deviation(piece: Piece) -> float:
    """Of a fresh tensor: what keeps the size of activations; the output starts at zero, as DiT's does."""
    name = piece.name
    if "proj_out." in name:
        return 0.0
    if "scale_shift_table" in name:
        return 1 / sqrt(piece.global_shape[-1])
    if "time_" in name:
        return 0.02
    return 1 / sqrt(prod(piece.global_shape[1:]))
