"""Low-rank adapters (LoRA, arXiv:2106.09685), put on the linear layers of a model that is built and loaded.

The frozen `y = W x` becomes `y = W x + scale B A x` with `A` `[rank, in]` and `B` `[out, rank]`. Our layers hold
several Hugging Face matrices in one (q, k and v; gate and up); each gets an adapter of its own, a part, which adds to
its rows of the output, so that adapters are those of the PEFT library. A layer keeps its name and its parameters; a
forward hook adds what its child module `lora` computes. Experts of a mixture: `loong_core.nn.lora_experts`.

Tensor ranks share an adapter as they share its matrix. Column-parallel: each rank holds the rows of `B` that are its
outputs', and all of `A`, whose gradient on a rank is a partial sum. Row-parallel: each rank holds the columns of `A`
that are its inputs', `A x` is summed over the ranks, and `B` is whole on all of them, with a partial gradient likewise.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.hooks import RemovableHandle

from loong_core.checkpoint.weight_map import Placement, Rule, Span, WeightMap
from loong_core.errors import UserError
from loong_core.nn.four_bit import matrix_of
from loong_core.nn.four_bit_base import write_out_base
from loong_core.nn.linear import ColumnParallelLinear, RowParallelLinear, parallel_linears, share
from loong_core.nn.lora_experts import adapt_experts, expert_layers, expert_rules, merge_experts
from loong_core.nn.lora_settings import ADAPTER_PREFIX, ALL_LINEAR, MAGNITUDE, A, B, LoraSettings, drawn
from loong_core.nn.name_patterns import chosen, matches
from loong_core.parallel.collectives import copy_to_all, sum_over, sum_to_tokens
from loong_core.parallel.context import ALONE, ParallelContext

__all__ = ["ADAPTER_PREFIX", "ALL_LINEAR", "LoraSettings", "apply_lora", "merge_lora"]


class LoraPart(nn.Module):
    """The adapter of one Hugging Face matrix on this rank.

    Attributes:
        a: `[rank, local in]`.
        b: `[local out, rank]`.
        magnitude: `[local out]` with dora, else None.
        rows: which of the layer's local outputs it adds to.
    """

    def __init__(self, rows: slice, a: nn.Parameter, b: nn.Parameter, magnitude: nn.Parameter | None) -> None:
        super().__init__()
        self.rows = rows
        self.a, self.b, self.magnitude = a, b, magnitude


class Lora(nn.ModuleDict):
    """The adapters of one linear layer, one a part, by the last component of the part's name."""

    def __init__(self, linear: ColumnParallelLinear | RowParallelLinear, settings: LoraSettings) -> None:
        super().__init__()
        self.scale = settings.scale
        self.dropout = settings.dropout
        # The axis over which a row-parallel layer sums, and the ranks that hold the same rows of a column-parallel one.
        self.summed = linear.axis if isinstance(linear, RowParallelLinear) else ALONE
        self.replicas = linear.replicas if isinstance(linear, ColumnParallelLinear) else ALONE
        self.hook: RemovableHandle | None = None

    def adapted(self, linear: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """The layer's output with the adapters': `x` is its input, `y` its own output."""
        x = F.dropout(x, self.dropout, self.training) if self.dropout else x
        pieces, done = [], 0
        for part in self._parts():
            pieces += [y[:, done : part.rows.start]] if done < part.rows.start else []
            own = y[:, part.rows]
            b = copy_to_all(part.b, self.replicas)
            added = F.linear(sum_to_tokens(F.linear(x, part.a), self.summed), b) * self.scale
            pieces.append(own + added if part.magnitude is None else self._directed(linear, part, own, added))
            done = part.rows.stop
        pieces += [y[:, done:]] if done < y.shape[1] else []
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)

    @torch.no_grad()
    def merge(self, linear: ColumnParallelLinear | RowParallelLinear) -> None:
        """Write the adapters into the layer's weight."""
        weight: Any = linear.weight
        for part in self._parts():
            own = weight[part.rows]
            merged = self._adapted_rows(linear, part)
            if part.magnitude is not None:
                merged = merged * (part.magnitude.to(merged.dtype) / self.row_norms(linear, part)).unsqueeze(1)
            own.copy_(merged)

    @torch.no_grad()
    def row_norms(self, linear: nn.Module, part: LoraPart) -> Tensor:
        """Euclidean norm of each row of the part's `W + scale B A`, `[local out]`, the whole row's on every rank."""
        squares = self._adapted_rows(linear, part).pow(2).sum(dim=1)
        return sum_over(squares, self.summed).sqrt()

    def _directed(self, linear: nn.Module, part: LoraPart, own: Tensor, added: Tensor) -> Tensor:
        """DoRA (equation 5 with the norm held constant, section 4.3): `m / |W + scale B A| (W + scale B A) x`."""
        magnitude = copy_to_all(part.magnitude, self.replicas)  # type: ignore[arg-type]
        ratio = magnitude / self.row_norms(linear, part).to(magnitude.dtype)
        bias = linear.bias
        plain = own if bias is None else own - bias[part.rows]  # type: ignore[index]
        return own + (ratio - 1) * plain + ratio * added

    def _adapted_rows(self, linear: nn.Module, part: LoraPart) -> Tensor:
        """`W + scale B A` of the part's rows, `[local out, local in]`, in float32 at least."""
        wide = torch.promote_types(part.a.dtype, torch.float32)
        return matrix_of(linear, wide)[part.rows] + self.scale * part.b.to(wide) @ part.a.to(wide)

    def _parts(self) -> Iterator[LoraPart]:
        return iter(self.values())  # type: ignore[arg-type]


def lora_weight_map(weight_map: WeightMap, settings: LoraSettings) -> WeightMap:
    """A weight map that knows the adapters too, under the names that PEFT gives their tensors."""
    rules = [*weight_map.rules, *expert_rules(weight_map, settings)]
    for rule in weight_map.rules:
        if not is_adaptable(rule):
            continue
        layer = rule.ours.removesuffix(".weight")
        held: dict[str, Any] = {"layers": rule.layers, "whole": rule.whole}
        for name, group in groupby(rule.spans, lambda span: span.name):
            spans = list(group)
            theirs = f"{ADAPTER_PREFIX}{name.removesuffix('.weight')}"
            ours = f"{layer}.lora.{_last(name)}"
            outputs, inputs = spans[0].shape
            cuts = [span.cut if span.cut is not None and span.cut.dim == 0 else None for span in spans]
            across = spans[0].cut if spans[0].cut is not None and spans[0].cut.dim == 1 else None
            rules.append(Rule(f"{ours}.a", Span(theirs + A, (settings.rank, inputs), across), **held))
            b = [Span(theirs + B, (outputs, settings.rank), cut) for cut in cuts]
            rules.append(Rule(f"{ours}.b", *b, **held))
            if settings.dora:
                magnitude = [Span(theirs + MAGNITUDE, (outputs,), cut) for cut in cuts]
                rules.append(Rule(f"{ours}.magnitude", *magnitude, **held))
    return WeightMap(rules)


def apply_lora(
    stages: Iterable[nn.Module],
    weight_map: WeightMap,
    num_layers: int,
    context: ParallelContext,
    settings: LoraSettings,
) -> WeightMap:
    """Freeze a loaded model and put adapters on its linear layers; to be called before an engine is built around it.

    Args:
        stages: the modules of this rank, with their weights.
        weight_map: their family's.
        num_layers: layers of the whole model.
        context: the one they were built with.
        settings: which adapters.

    Returns:
        The weight map to give to the engine. `B` starts at zero, so the model computes what it did.

    Raises:
        UserError: a target matches nothing, or something that is not a linear layer of a block, or one layer's rows
            are those of two here.
    """
    wanted = wanted_layers(weight_map, num_layers, settings)
    extended = lora_weight_map(weight_map, settings)
    for stage in stages:
        stage.requires_grad_(False)
        adapted: set[str] = set()
        for layer, linear in parallel_linears(stage):
            placement = weight_map.placement(f"{layer}.weight", context)
            parts = [part for part in _parts_of(placement) if part[0] in wanted]
            if twice := adapted & {name for name, _ in parts}:
                raise UserError(
                    f"lora.targets: {twice.pop()} is one layer of which queries and keys lie in two here, as there are "
                    f"more tensor ranks than key-value heads (layout.tensor={context.tensor.size}): take fewer"
                )
            adapted |= {name for name, _ in parts}
            if parts:
                _adapt(layer, linear, parts, extended, context, settings)
        adapt_experts(stage, wanted, extended, context, settings)
    return extended


def merge_lora(stages: Iterable[nn.Module]) -> None:
    """Write every adapter into its layer's weight and take it off; the model computes the same, without adapters.

    Weights in 4 bits are written out, so that what is merged is what was trained.
    """
    stages = list(stages)
    write_out_base(stages)
    for stage in stages:
        for _, linear in parallel_linears(stage):
            lora = getattr(linear, "lora", None)
            if isinstance(lora, Lora):
                lora.merge(linear)
                if lora.hook is not None:
                    lora.hook.remove()
                del linear.lora
        merge_experts(stage)


def adapter_layers(names: Iterable[str]) -> set[str]:
    """The Hugging Face layers that adapter tensors of these names adapt."""
    return {
        name.removeprefix(ADAPTER_PREFIX).removesuffix(ending)
        for name in names
        for ending in (A, B, MAGNITUDE)
        if name.startswith(ADAPTER_PREFIX) and name.endswith(ending)
    }


def linear_layers(weight_map: WeightMap, num_layers: int) -> set[str]:
    """The Hugging Face names of every layer that can be adapted."""
    adaptable = WeightMap(rule for rule in weight_map.rules if is_adaptable(rule))
    return {name.removesuffix(".weight") for name in adaptable.tensors(num_layers)}


def adapter_parameters(weight_map: WeightMap, num_layers: int, settings: LoraSettings) -> int:
    """How many parameters adapters add to a model, over all ranks.

    Raises:
        UserError: `wanted_layers`'.
    """
    wanted = wanted_layers(weight_map, num_layers, settings)
    shapes = lora_weight_map(weight_map, settings).tensors(num_layers)
    count = 0
    for name, shape in shapes.items():
        for layer in adapter_layers([name]):
            module, _, rest = layer.partition(".experts.")
            # Experts' tensors are numbered, the parameter that is named as their target is not.
            target = f"{module}.experts.{rest.rpartition('.')[2]}" if rest.split(".")[0].isdigit() else layer
            count += prod(shape) if target in wanted else 0
    return count


def is_adaptable(rule: Rule) -> bool:
    """Whether a rule is for a matrix within the blocks."""
    matrices = all(len(span.shape) == 2 for span in rule.spans)
    return "{layer}" in rule.ours and rule.ours.endswith(".weight") and matrices and not rule.experts


def wanted_layers(weight_map: WeightMap, num_layers: int, settings: LoraSettings) -> set[str]:
    """The Hugging Face layers, and parameters of experts, that the targets name.

    Raises:
        UserError: a target matches nothing, or something that takes no adapter.
    """
    linears = linear_layers(weight_map, num_layers)
    adaptable = linears | expert_layers(weight_map, num_layers)
    targets = [target for target in settings.targets if target != ALL_LINEAR]
    for target in targets:
        others = [name for name in weight_map.tensors(num_layers) if matches(name, target)]
        if others and not any(matches(name, target) for name in adaptable):
            raise UserError(
                f"lora.targets: {target!r} matches {others[0]}, which takes no adapter; only the linear layers of the "
                f"blocks do: {', '.join(sorted({_last(name) for name in adaptable}))}"
            )
    found = chosen(adaptable, targets, "lora.targets")
    return found | linears if ALL_LINEAR in settings.targets else found


def _parts_of(placement: Placement) -> Iterator[tuple[str, slice]]:
    """The Hugging Face layers in a weight, each with its rows."""
    row = 0
    for name, group in groupby(zip(placement.pieces, placement.rooms, strict=True), lambda pair: pair[0].name):
        rows = sum(room[0] for _, room in group)
        yield name.removesuffix(".weight"), slice(row, row + rows)
        row += rows


def _last(name: str) -> str:
    return name.removesuffix(".weight").rsplit(".", 1)[-1]


def _adapt(
    layer: str,
    linear: ColumnParallelLinear | RowParallelLinear,
    parts: list[tuple[str, slice]],
    weight_map: WeightMap,
    context: ParallelContext,
    settings: LoraSettings,
) -> None:
    """Put adapters on one layer."""
    lora = Lora(linear, settings)
    column = isinstance(linear, ColumnParallelLinear)
    counted = not isinstance(linear, ColumnParallelLinear) or linear.replicas.rank == 0
    like = linear.weight

    def whole(values: Tensor) -> nn.Parameter:
        """A parameter that every tensor rank holds, whose gradient on a rank is a partial sum."""
        parameter = nn.Parameter(values.to(like.device, like.dtype))
        parameter.sequence_parallel = context.sequence_parallel  # type: ignore[attr-defined]
        return parameter

    def cut(values: Tensor, dim: int) -> nn.Parameter:
        parameter = nn.Parameter(values.to(like.device, like.dtype))
        return share(parameter, dim, context, counted=counted)

    for name, rows in parts:
        own = f"{layer}.lora.{_last(name)}"
        placed = weight_map.placement(f"{own}.a", context)
        a = placed.to_local([drawn(piece, settings.seed) for piece in placed.pieces])
        b = torch.zeros(weight_map.placement(f"{own}.b", context).shape)
        part = LoraPart(rows, whole(a) if column else cut(a, 1), cut(b, 0) if column else whole(b), None)
        if settings.dora:
            norms = lora.row_norms(linear, part)
            part.magnitude = cut(norms, 0) if column else whole(norms)
        lora[_last(name)] = part
    linear.lora = lora
    lora.hook = linear.register_forward_hook(_add)


def _add(linear: Any, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return linear.lora.adapted(linear, arguments[0], output)
