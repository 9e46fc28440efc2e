"""Giving the layers of a built model their precision, by name pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from loong_core.checkpoint.weight_map import WeightMap
from loong_core.errors import UserError
from loong_core.nn.linear import ColumnParallelLinear, RowParallelLinear
from loong_core.nn.lora import linear_layers
from loong_core.nn.moe.experts import Experts
from loong_core.nn.name_patterns import chosen
from loong_core.parallel.context import ParallelContext
from loong_core.precision.adaptive import AdaptiveChoice
from loong_core.precision.layer import LayerPrecision
from loong_core.precision.settings import Choice, PrecisionSettings
from loong_core.precision.table import Table, Work
from loong_kernels.fp8.weights import why_not_in_bits


@dataclass(frozen=True)
class AppliedPrecision:
    """What became of the layers of this rank.

    Attributes:
        layers: those that compute in 8 bits, always or where it is faster.
        left: lines that say which others stay in bf16, and why.
        adaptive: the choice that adaptive layers share, None if there are none.
    """

    layers: tuple[LayerPrecision, ...]
    left: tuple[str, ...]
    adaptive: AdaptiveChoice | None

    def __str__(self) -> str:
        """One line for people."""
        counts = Counter("adaptive" if each.adapts else each.recipe for each in self.layers)
        told = ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
        return f"layers with products in 8 bits: {told}" + "".join(f"; {line}" for line in self.left)


def apply_precision(
    stages: Iterable[nn.Module],
    weight_map: WeightMap,
    num_layers: int,
    context: ParallelContext,
    settings: PrecisionSettings,
    table: Table | None = None,
) -> AppliedPrecision:
    """Give each linear layer of the blocks, and the experts, the precision that the settings name.

    Args:
        stages: the modules of this rank.
        weight_map: their family's, without adapters.
        num_layers: layers of the whole model.
        context: the one they were built with.
        settings: recipe and overrides.
        table: measurements, for `adaptive`.

    Raises:
        UserError: an override matches nothing, parts what is one matrix here, names a recipe that experts do not have,
            or `adaptive` has no table; no stage is needed to find out about patterns and table.
    """
    choices = chosen_by_name(weight_map, num_layers, settings)
    adaptive = None
    if "adaptive" in choices.values():
        if table is None:
            raise UserError(
                "fp8.recipe: adaptive has no measurements of this device; run `loong tune` on it, or name a recipe"
            )
        adaptive = AdaptiveChoice(table)
    layers: list[LayerPrecision] = []
    left: Counter[str] = Counter()
    for stage in stages:
        for name, module, parameters in _products(stage):
            own = {
                choices[piece.name]
                for parameter in parameters
                for piece in weight_map.placement(f"{name}.{parameter}", context).pieces
            }
            choice = _one_of(own, name)
            if choice == "bf16":
                continue
            reason = _why_left(module, choice)
            if reason is not None:
                left[reason] += 1
                continue
            recipe = "blockwise" if choice == "adaptive" else choice
            made = LayerPrecision(name, recipe, _work(module), adaptive if choice == "adaptive" else None)
            module.precision = made
            layers.append(made)
            if adaptive is not None and made.adapts:
                adaptive.works.append(made.work)
    told = tuple(f"{count} left in bf16: {reason}" for reason, count in left.items())
    return AppliedPrecision(tuple(layers), told, adaptive)


def chosen_by_name(weight_map: WeightMap, num_layers: int, settings: PrecisionSettings) -> dict[str, Choice]:
    """The choice for every Hugging Face tensor that may be used in 8 bits.

    Raises:
        UserError: an override matches nothing.
    """
    names = [f"{layer}.weight" for layer in sorted(linear_layers(weight_map, num_layers))]
    names += _expert_tensors(weight_map, num_layers)
    choices: dict[str, Choice] = dict.fromkeys(names, settings.recipe)
    for pattern, choice in settings.overrides.items():
        choices.update(dict.fromkeys(chosen(names, [pattern], "fp8.overrides"), choice))
    return choices


def precisions(stages: Sequence[nn.Module]) -> list[LayerPrecision]:
    """Those that were applied to the layers of some stages."""
    found = [getattr(module, "precision", None) for stage in stages for module in stage.modules()]
    return [each for each in found if isinstance(each, LayerPrecision)]


def _expert_tensors(weight_map: WeightMap, num_layers: int) -> list[str]:
    experts = WeightMap(rule for rule in weight_map.rules if rule.experts)
    return sorted(experts.tensors(num_layers))


def _products(stage: nn.Module) -> Iterator[tuple[str, nn.Module, tuple[str, ...]]]:
    """Every layer that may compute in 8 bits, with the names of its matrices."""
    for name, module in stage.named_modules():
        if isinstance(module, ColumnParallelLinear | RowParallelLinear):
            yield name, module, ("weight",)
        elif isinstance(module, Experts):
            yield name, module, ("gate_up", "down")


def _one_of(choices: set[Choice], name: str) -> Choice:
    if len(choices) > 1:
        raise UserError(
            f"fp8.overrides: the tensors of {name}, one matrix here, are given {' and '.join(sorted(choices))}"
        )
    return choices.pop()


def _why_left(module: nn.Module, choice: Choice) -> str | None:
    if isinstance(module, Experts):
        if choice in ("rowwise", "tensorwise"):
            return f"experts have no {choice} products"
        if module.lora is not None:
            return "experts have adapters"
        _, hidden, size = module.down.shape
        return why_not_in_bits(hidden, size)
    out_features, in_features = module.weight.shape  # type: ignore[misc]
    return why_not_in_bits(int(out_features), int(in_features))  # type: ignore[arg-type]


def _work(module: nn.Module) -> Work:
    if isinstance(module, Experts):
        experts, hidden, size = module.down.shape
        return Work("experts", size, hidden, experts)
    out_features, in_features = module.weight.shape  # type: ignore[misc]
    return Work("linear", int(out_features), int(in_features))  # type: ignore[arg-type]
