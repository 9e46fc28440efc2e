"""A language model of a few hundred parameters, cut into stages, with the attributes and names a real one has."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.checkpoint.weight_map import Rule, Span, WeightMap
from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.engine.base import LossTerms
from loong_core.parallel.context import ParallelContext

VOCABULARY, WIDTH, INNER, LAYERS = 19, 8, 12, 4


class Block(nn.Module):
    """`x + down(silu(gate x) * up x) * scale`, gate and up in one matrix."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.gate_up = nn.Linear(WIDTH, 2 * INNER, bias=False, dtype=dtype)
        self.down = nn.Linear(INNER, WIDTH, dtype=dtype)
        self.scale = nn.Parameter(torch.ones(WIDTH, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up) * self.scale


class ToyStage(nn.Module):
    """Some layers, with the table that embeds and the one that scores where the stage has them."""

    def __init__(self, layers: range, dtype: torch.dtype, *, tied: bool = False) -> None:
        super().__init__()
        self.tied = tied
        self.embedding = nn.Embedding(VOCABULARY, WIDTH, dtype=dtype) if layers.start == 0 else None
        self.layers = nn.ModuleDict({str(number): Block(dtype) for number in layers})
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=dtype) if layers.stop == LAYERS else None
        if tied and self.head is not None:
            if self.embedding is not None:
                self.head.weight = self.embedding.weight
            else:
                self.head.weight.shared = True  # type: ignore[attr-defined]
        self.initialise()

    @property
    def tied_table(self) -> nn.Parameter | None:
        end = self.embedding if self.embedding is not None else self.head
        return end.weight if self.tied and end is not None else None

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw each parameter by its own name, whatever stage it is on."""
        for name, parameter in self.named_parameters():
            name = "embedding.weight" if self.tied and name == "head.weight" else name
            generator = torch.Generator().manual_seed(sum(map(ord, name)) * 7919)
            values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(values * 0.3 + (1.0 if name.endswith("scale") else 0.0))

    def forward(self, batch: PackedBatch, hidden: Tensor | None = None) -> Tensor:
        x = self.embedding(batch.tokens) if self.embedding is not None else hidden
        assert x is not None
        for layer in self.layers.values():
            x = layer(x)
        if self.head is None:
            return x
        scores = self.head(x)
        scores = scores if scores.dtype == torch.float64 else scores.float()
        return F.cross_entropy(scores, batch.labels, ignore_index=IGNORED_LABEL, reduction="none")


def weight_map(*, tied: bool = False) -> WeightMap:
    """Names of the outside world: gate and up apart, as Hugging Face models have them."""
    table = Span("model.embed.weight", (VOCABULARY, WIDTH))
    return WeightMap(
        [
            Rule("embedding.weight", table),
            Rule(
                "layers.{layer}.gate_up.weight",
                Span("model.layers.{layer}.gate.weight", (INNER, WIDTH)),
                Span("model.layers.{layer}.up.weight", (INNER, WIDTH)),
            ),
            Rule("layers.{layer}.down.weight", Span("model.layers.{layer}.down.weight", (WIDTH, INNER))),
            Rule("layers.{layer}.down.bias", Span("model.layers.{layer}.down.bias", (WIDTH,))),
            Rule("layers.{layer}.scale", Span("model.layers.{layer}.scale", (WIDTH,))),
            Rule("head.weight", table if tied else Span("lm_head.weight", (VOCABULARY, WIDTH))),
        ]
    )


def build_stages(context: ParallelContext, dtype: torch.dtype, *, tied: bool = False) -> list[ToyStage]:
    """This rank's stages."""
    ranges = context.layout.stage_layers(LAYERS)[context.pipeline.rank]
    return [ToyStage(layers, dtype, tied=tied) for layers in ranges]


def forward_step(model: nn.Module, batch: PackedBatch, hidden: Tensor | None) -> LossTerms | Tensor:
    """Next-token loss, and a metric."""
    out = model(batch, hidden)
    if out.ndim == 2:
        return out
    trained = (batch.labels != IGNORED_LABEL).sum()
    return LossTerms(out.sum(), trained, {"tokens_seen": torch.tensor(float(batch.tokens.numel()))})


def microbatch(number: int, length: int = 10) -> PackedBatch:
    """The `number`-th microbatch of all; a different part of each has no label."""
    generator = torch.Generator().manual_seed(number)
    tokens = torch.randint(VOCABULARY, (length,), generator=generator)
    labels = torch.randint(VOCABULARY, (length,), generator=generator)
    labels[: number % 5] = IGNORED_LABEL
    return PackedBatch.from_lengths(tokens, labels, [length])


def step_batches(step: int, global_batch: int, context: ParallelContext, length: int = 10) -> list[PackedBatch]:
    """What this data rank sees of a step's microbatches."""
    numbers = range(step * global_batch, (step + 1) * global_batch)
    return [microbatch(number, length) for number in numbers][context.data.rank :: context.data.size]
