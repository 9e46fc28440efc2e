"""Which parameters are trained, by patterns of their Hugging Face names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.errors import UserError
from loong_core.nn.name_patterns import chosen
from loong_core.parallel.context import ParallelContext


@dataclass(frozen=True)
class Trained:
    """How many of this rank's parameters are trained, of how many."""

    trained: int
    total: int

    def __str__(self) -> str:
        """One line for people."""
        share = 100 * self.trained / max(self.total, 1)
        return f"{self.trained:,} of {self.total:,} parameters are trained ({share:.2f} %)"


def freeze(
    stages: Iterable[nn.Module],
    weight_map: WeightMap,
    num_layers: int,
    context: ParallelContext,
    *,
    frozen: Sequence[str] = (),
    trained: Sequence[str] = (),
) -> Trained:
    """Take parameters out of training; to be called before an engine is built around the stages.

    Args:
        stages: the modules of this rank.
        weight_map: their family's.
        num_layers: layers of the whole model.
        context: the one they were built with.
        frozen: patterns of what is not trained.
        trained: patterns of what alone is trained; give one of the two.

    Raises:
        UserError: a pattern matches nothing, both kinds are given, tensors that share a parameter are parted, or
            nothing is left to train.
    """
    if frozen and trained:
        raise UserError("train.freeze and train.train_only are both set; give one of the two")
    names = weight_map.tensors(num_layers)
    still = chosen(names, frozen, "train.freeze") if frozen else set(names) - chosen(names, trained, "train.train_only")
    if not trained and not frozen:
        still = set()
    if still >= set(names):
        raise UserError("train.freeze leaves nothing to train; freeze less")
    count = total = 0
    for stage in stages:
        for parameter, placement in weight_map.placements(stage, context):
            own = sorted({piece.name for piece in placement.pieces})
            held = [name for name in own if name in still]
            if held and len(held) < len(own):
                rest = ", ".join(name for name in own if name not in still)
                raise UserError(
                    f"train.freeze: {', '.join(held)} would be frozen and {rest} not, but they are one parameter here; "
                    "freeze all of them or none"
                )
            if held:
                parameter.requires_grad_(False)
            total += parameter.numel()
            count += parameter.numel() if parameter.requires_grad else 0
    return Trained(count, total)
