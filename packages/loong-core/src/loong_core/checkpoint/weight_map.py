"""How a model's parameters on one rank are made of Hugging Face tensors, and back.

A family declares a list of rules. A rule says, for one of our parameters, which spans of which Hugging Face tensors
lie in it one after the other (fused q, k, v; fused gate and up), and how tensor ranks divide each span. For a given
rank that yields boxes (`Piece`) to read or write and the means to join and separate them. It works alike on weights,
gradients and optimizer moments of any dtype, and nothing is read or computed until asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

import torch
from torch import Tensor, nn

from loong_core.checkpoint.pieces import Piece
from loong_core.parallel.context import Axis, ParallelContext


@dataclass(frozen=True)
class Cut:
    """A span of one dimension of a Hugging Face tensor, and how tensor ranks divide it.

    Attributes:
        dim: the dimension.
        units: how many parts that are not split further: heads, or columns, or rows. With fewer units than ranks,
            neighbouring ranks hold the same unit; without a common divisor the last ranks hold fewer or none, and pad.
        unit_size: indices a unit takes.
        start: where the span begins, for tensors that are themselves fused.
        run: units that lie next to each other, where others' lie between them (dimension 0 only); 0: all do.
        step: indices from the beginning of one such run to the next.
    """

    dim: int
    units: int
    unit_size: int = 1
    start: int = 0
    run: int = 0
    step: int = 0

    def __post_init__(self) -> None:
        if self.run and (self.dim or self.step < self.run * self.unit_size):
            raise ValueError(f"{self}: runs lie one behind the other along dimension 0")

    def local(self, rank: int, size: int) -> list[tuple[int, int]]:
        """Offsets and extents of what one of `size` ranks holds, in order; one that holds nothing has an empty one."""
        if self.units < size and size % self.units == 0:
            first, count = rank // (size // self.units), 1
        else:
            held = -(-self.units // size)
            first = min(rank * held, self.units)
            count = min(held, self.units - first)
        run, last = self.run or self.units, first + count
        found = []
        for number in range(first // run, max(-(-last // run), first // run + 1)):
            low, high = max(first - number * run, 0), min(last - number * run, run)
            found.append((self.start + number * self.step + low * self.unit_size, (high - low) * self.unit_size))
        return found

    def local_extent(self, size: int) -> int:
        """Extent that each of `size` ranks has room for; the last may hold less."""
        return max(-(-self.units // size), 1) * self.unit_size

    def copies(self, size: int) -> int:
        """How many neighbouring ranks of `size` hold the same."""
        return size // self.units if self.units < size and size % self.units == 0 else 1


@dataclass(frozen=True)
class Form:
    """How a stored tensor lies, compared to its part of one of our parameters.

    Attributes:
        stacked: it holds all experts of a layer, one an index of a first dimension.
        transposed: its rows are our columns.
    """

    stacked: bool = False
    transposed: bool = False

    def stored(self, extents: Sequence[int], expert: int) -> tuple[int, ...]:
        """Offsets (or, with 1 for `expert`, sizes) of ours as the stored tensor's."""
        own = tuple(reversed(extents)) if self.transposed else tuple(extents)
        return (expert, *own) if self.stacked else own

    def ours(self, extents: Sequence[int]) -> tuple[int, ...]:
        """Offsets or sizes in the stored tensor as ours."""
        own = tuple(extents[1:] if self.stacked else extents)
        return tuple(reversed(own)) if self.transposed else own

    def view(self, ours: Tensor) -> Tensor:
        """Our values seen as the stored tensor's."""
        own = ours.transpose(0, 1) if self.transposed else ours
        return own.unsqueeze(0) if self.stacked else own


AS_OURS = Form()
"""A tensor that lies as its part of our parameter does."""


@dataclass(frozen=True)
class Span:
    """A Hugging Face tensor, or a cut of one, within one of our parameters.

    Attributes:
        name: its name, with `{layer}` where the layer's number goes, and `{expert}` where an expert's.
        shape: the whole tensor's, as it lies in our parameter; of stacked experts one's.
        cut: how tensor ranks divide it; None where each holds all of it.
        form: how it is stored.
    """

    name: str
    shape: tuple[int, ...]
    cut: Cut | None = None
    form: Form = AS_OURS

    def pieces(self, layer: int, rank: int, size: int, expert: int = 0, experts: int = 0) -> list[Piece]:
        """The boxes that tensor rank `rank` of `size` holds, of one of `experts` experts."""
        name, stored = self.name.format(layer=layer, expert=expert), self.form.stored
        found = []
        for box in [None] if self.cut is None else self.cut.local(rank, size):
            offsets, sizes = [0] * len(self.shape), list(self.shape)
            if self.cut is not None and box is not None:
                offsets[self.cut.dim], sizes[self.cut.dim] = box
            found.append(Piece(name, self.stored_shape(experts), stored(offsets, expert), stored(sizes, 1)))
        return found

    def rooms(self, pieces: Sequence[Piece], size: int) -> list[tuple[int, ...]]:
        """Shape of the room for each piece in the parameter; the last has what there is beyond its values."""
        rows, *rest = self.local_shape(size)
        held = [self.form.ours(piece.sizes)[0] for piece in pieces[:-1]]
        return [(own, *rest) for own in (*held, rows - sum(held))]

    def stored_shape(self, experts: int) -> tuple[int, ...]:
        """Shape of the Hugging Face tensor."""
        return self.form.stored(self.shape, experts)

    def local_shape(self, size: int) -> tuple[int, ...]:
        """Shape of all the room for it in the parameter of each of `size` tensor ranks."""
        shape = list(self.shape)
        if self.cut is not None:
            shape[self.cut.dim] = self.cut.local_extent(size)
        return tuple(shape)


@dataclass(frozen=True)
class Rule:
    """One of our parameters.

    Attributes:
        ours: its name, with `{layer}` for the layer's number.
        spans: what lies in it along dimension 0.
        layers: the layers that have it; None for all.
        experts: in how many experts of a mixture the spans occur, 0 where they are none's. The parameter then has one
            more dimension in front, in which the experts of a rank are stacked; the layout's expert axis divides the
            experts, and its expert-tensor axis, instead of the tensor axis, cuts the spans.
        whole: whether each tensor rank holds all of every span, cuts or not: of a part that tensor ranks hold whole,
            and that could be divided (`WeightMap.divided`).
    """

    ours: str
    spans: tuple[Span, ...]
    layers: tuple[int, ...] | None = None
    experts: int = 0
    whole: bool = False

    def __init__(
        self, ours: str, *spans: Span, layers: Iterable[int] | None = None, experts: int = 0, whole: bool = False
    ) -> None:
        object.__setattr__(self, "ours", ours)
        object.__setattr__(self, "spans", spans)
        object.__setattr__(self, "layers", None if layers is None else tuple(layers))
        object.__setattr__(self, "experts", experts)
        object.__setattr__(self, "whole", whole)


def part_rules(rules: Iterable[Rule], num_layers: int, ours: str, theirs: Callable[[str], str]) -> list[Rule]:
    """The rules of a model that is a part of a larger one.

    Args:
        rules: of the part by itself.
        num_layers: its layers; the whole may have parts with other numbers of them.
        ours: what comes before the names of its parameters.
        theirs: what its Hugging Face tensors are called in the whole, by their own names.
    """
    return [
        Rule(
            ours + rule.ours,
            *(replace(span, name=theirs(span.name)) for span in rule.spans),
            layers=rule.layers if rule.layers is not None or "{layer}" not in rule.ours else range(num_layers),
            experts=rule.experts,
            whole=rule.whole,
        )
        for rule in rules
    ]


def whole_on_each_rank(rules: Iterable[Rule]) -> list[Rule]:
    """The same tensors in parameters that every tensor rank holds whole."""
    return [Rule(rule.ours, *rule.spans, layers=rule.layers, experts=rule.experts, whole=True) for rule in rules]


@dataclass(frozen=True)
class Placement:
    """What one rank's parameter is made of.

    Attributes:
        name: the parameter's name.
        pieces: the boxes that lie in it, in order along dimension 0 (of stacked experts: of one after the other).
        rooms: shape of the room for each; larger than its piece where the rank pads.
        writes: whether this rank is the one to write it among the tensor ranks that hold the same.
        copies: the data ranks that hold the same.
        stacked: how many experts are stacked in a dimension of their own, 0 where there is none.
        forms: how each piece is stored.
    """

    name: str
    pieces: tuple[Piece, ...]
    rooms: tuple[tuple[int, ...], ...]
    writes: bool
    copies: Axis
    stacked: int = 0
    forms: tuple[Form, ...] = ()

    def __post_init__(self) -> None:
        if not self.forms:
            object.__setattr__(self, "forms", (AS_OURS,) * len(self.pieces))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the local parameter."""
        rows, *rest = self.rows_shape
        return (self.stacked, rows // self.stacked, *rest) if self.stacked else (rows, *rest)

    @property
    def rows_shape(self) -> tuple[int, ...]:
        """The same with the rooms in dimension 0, one after the other: a view, if experts are stacked."""
        return (sum(room[0] for room in self.rooms), *self.rooms[0][1:])

    def to_local(self, tensors: Sequence[Tensor]) -> Tensor:
        """Join the pieces' values (in the order of `pieces`) to the local parameter; padding is zero.

        The result is new memory unless there is a single piece without padding.
        """
        if len(tensors) == 1 and self.pieces[0].sizes == self.rooms[0] and self.forms[0] == AS_OURS:
            return tensors[0].view(self.shape)
        local = torch.zeros(self.shape, dtype=tensors[0].dtype, device=tensors[0].device)
        for part, tensor in zip(self.from_local(local), tensors, strict=True):
            part.copy_(tensor)
        return local

    def from_local(self, local: Tensor) -> list[Tensor]:
        """Views of the local parameter (or of a moment of its shape), one a piece, padding left out."""
        if tuple(local.shape) != self.shape:
            raise ValueError(f"{self.name} is {list(local.shape)} here, the weight map makes it {list(self.shape)}")
        rooms = local.view(self.rows_shape).split([room[0] for room in self.rooms])
        return [
            form.view(room[tuple(slice(0, size) for size in form.ours(piece.sizes))])
            for room, piece, form in zip(rooms, self.pieces, self.forms, strict=True)
        ]


class WeightMap:
    """The rules of one model.

    Args:
        rules: one for each kind of parameter; two may name the same Hugging Face tensor (tied tables).
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)
        self._patterns = [
            (re.compile(re.escape(rule.ours).replace(re.escape("{layer}"), r"(?P<layer>\d+)")), rule)
            for rule in self.rules
        ]

    def placement(self, name: str, context: ParallelContext) -> Placement:
        """What the parameter `name` of a module built with `context` is made of on this rank.

        Raises:
            KeyError: if no rule is for it; the message names the nearest.
        """
        rule, layer = self.rule_of(name)
        tensor = context.expert_tensor if rule.experts else context.tensor
        rank, size = (0, 1) if rule.whole else (tensor.rank, tensor.size)
        held = rule.experts // context.expert.size
        experts = range(context.expert.rank * held, (context.expert.rank + 1) * held) if rule.experts else range(1)
        pieces: list[Piece] = []
        rooms: list[tuple[int, ...]] = []
        forms: list[Form] = []
        for expert in experts:
            for span in rule.spans:
                own = span.pieces(layer, rank, size, expert, rule.experts)
                pieces += own
                rooms += span.rooms(own, size)
                forms += [span.form] * len(own)
        cuts = [span.cut for span in rule.spans if span.cut is not None and not rule.whole]
        same = cuts[0].copies(tensor.size) if cuts else tensor.size
        return Placement(
            name,
            tuple(pieces),
            tuple(rooms),
            writes=tensor.rank % same == 0,
            copies=context.expert_data if rule.experts else context.data_context,
            stacked=held,
            forms=tuple(forms),
        )

    def placements(self, module: nn.Module, context: ParallelContext) -> Iterator[tuple[nn.Parameter, Placement]]:
        """Every parameter of a module, each once, with its placement."""
        for name, parameter in module.named_parameters():
            yield parameter, self.placement(name, context)

    def divided(self) -> WeightMap:
        """The same with parts divided among tensor ranks that are held whole here."""
        return WeightMap(Rule(rule.ours, *rule.spans, layers=rule.layers, experts=rule.experts) for rule in self.rules)

    def tensors(self, num_layers: int) -> dict[str, tuple[int, ...]]:
        """Name and shape of every Hugging Face tensor of a model with this many layers, in the order of the rules."""
        found: dict[str, tuple[int, ...]] = {}
        for rule in self.rules:
            layers = range(num_layers) if rule.layers is None else rule.layers
            for layer in layers if "{layer}" in rule.ours else [0]:
                for expert in range(rule.experts or 1):
                    found |= {
                        span.name.format(layer=layer, expert=expert): span.stored_shape(rule.experts)
                        for span in rule.spans
                    }
        return found

    def rule_of(self, name: str) -> tuple[Rule, int]:
        """The rule for a parameter, and its layer's number (0 outside layers).

        Raises:
            KeyError: if there is none; the message names the nearest.
        """
        for pattern, rule in self._patterns:
            if match := pattern.fullmatch(name):
                layer = int(match.groupdict().get("layer") or 0)
                if rule.layers is None or layer in rule.layers:
                    return rule, layer
        near = get_close_matches(name, [rule.ours for rule in self.rules], n=1, cutoff=0)
        raise KeyError(f"no rule of the weight map is for {name}; the nearest is for {near[0] if near else 'nothing'}")
