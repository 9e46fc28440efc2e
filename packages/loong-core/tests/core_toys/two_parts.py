"""An encoder of pictures and a decoder that reads their features in the place of some tokens, each with a layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.checkpoint.weight_map import Cut, Rule, Span, WeightMap
from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.data.context_cut import cut_batch, rows_of_ranks
from loong_core.engine.base import LossTerms
from loong_core.engine.components.features import FedFeatures
from loong_core.engine.components.feeding import Chosen, Feeding, Item
from loong_core.nn.decoder import Decoder
from loong_core.nn.decoder_config import AttentionConfig, BlockConfig, DecoderConfig, FeedForwardConfig, RotaryConfig
from loong_core.nn.feed_forward import FeedForward
from loong_core.nn.norm import ResidualNorm
from loong_core.nn.token_features import TokenFeatures
from loong_core.parallel.context import ParallelContext

PATCH, WIDTH, INNER, HEADS, HEAD, VOCABULARY = 5, 16, 24, 4, 4, 29
ENCODER_LAYERS, LAYERS = 2, 4
CONFIG = DecoderConfig(
    WIDTH, VOCABULARY, (BlockConfig(AttentionConfig(HEADS, HEADS, HEAD, RotaryConfig(1e4, HEAD), qk_norm=False),
                                    FeedForwardConfig(INNER)),) * LAYERS, 1e-6,
)  # fmt: skip


class Encoder(nn.Module):
    """Patches to features, one a patch; tensor ranks share its matrices and, between them, the patches."""

    def __init__(self, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.axis = context.tensor
        self.embed = nn.Linear(PATCH, WIDTH, bias=False, dtype=dtype)
        self.embed.weight.sequence_parallel = context.sequence_parallel  # type: ignore[assignment]
        self.layers = nn.ModuleDict(
            {
                str(number): EncoderBlock(ResidualNorm(WIDTH, 1e-6, context, dtype), context, dtype)
                for number in range(ENCODER_LAYERS)
            }
        )

    def forward(self, patches: Tensor) -> Tensor:
        """`[patches, PATCH]`, whole on every tensor rank, to this rank's run of the features, `[run, WIDTH]`."""
        count = patches.shape[0]
        run = -(-count // self.axis.size)
        padded = F.pad(patches, (0, 0, 0, run * self.axis.size - count))
        x = self.embed(padded[self.axis.rank * run : (self.axis.rank + 1) * run])
        for layer in self.layers.values():
            x = layer(x, count)
        return x


class EncoderBlock(nn.Module):
    def __init__(self, norm: ResidualNorm, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = norm
        self.feed_forward = FeedForward(WIDTH, FeedForwardConfig(INNER), context, dtype)

    def forward(self, x: Tensor, count: int) -> Tensor:
        return x + self.feed_forward(self.norm(x, None)[0], count)


def _feed_forward(ours: str, theirs: str) -> list[Rule]:
    rows = Cut(0, INNER)
    return [
        Rule(
            f"{ours}.feed_forward.gate_up.weight",
            Span(f"{theirs}.gate.weight", (INNER, WIDTH), rows),
            Span(f"{theirs}.up.weight", (INNER, WIDTH), rows),
        ),
        Rule(f"{ours}.feed_forward.down.weight", Span(f"{theirs}.down.weight", (WIDTH, INNER), Cut(1, INNER))),
    ]


ENCODER_MAP = WeightMap(
    [
        Rule("embed.weight", Span("encoder.embed.weight", (WIDTH, PATCH))),
        Rule("layers.{layer}.norm.weight", Span("encoder.{layer}.norm.weight", (WIDTH,))),
        *_feed_forward("layers.{layer}", "encoder.{layer}"),
    ]
)
_HEADS = Cut(0, HEADS, HEAD)
_TABLE = Cut(0, VOCABULARY)
DECODER_MAP = WeightMap(
    [
        Rule("embedding.weight", Span("decoder.table.weight", (VOCABULARY, WIDTH), _TABLE)),
        Rule("head.weight", Span("decoder.head.weight", (VOCABULARY, WIDTH), _TABLE)),
        Rule("norm.weight", Span("decoder.norm.weight", (WIDTH,))),
        Rule("layers.{layer}.attention_norm.weight", Span("decoder.{layer}.norm1.weight", (WIDTH,))),
        Rule("layers.{layer}.feed_forward_norm.weight", Span("decoder.{layer}.norm2.weight", (WIDTH,))),
        Rule(
            "layers.{layer}.attention.qkv.weight",
            *(Span(f"decoder.{{layer}}.{each}.weight", (HEADS * HEAD, WIDTH), _HEADS) for each in "qkv"),
        ),
        Rule(
            "layers.{layer}.attention.output.weight",
            Span("decoder.{layer}.o.weight", (WIDTH, HEADS * HEAD), Cut(1, HEADS, HEAD)),
        ),
        *_feed_forward("layers.{layer}", "decoder.{layer}"),
    ]
)


@torch.no_grad()
def draw(module: nn.Module, weight_map: WeightMap, context: ParallelContext) -> None:
    """Fill each parameter from whole tensors drawn by their names, whatever the layout."""
    for parameter, placement in weight_map.placements(module, context):
        values = []
        for piece in placement.pieces:
            generator = torch.Generator().manual_seed(sum(map(ord, piece.name)) * 7919)
            whole = torch.randn(piece.global_shape, generator=generator, dtype=torch.float64) * 0.3
            values.append((whole + (len(piece.global_shape) == 1))[piece.slices].to(parameter.dtype))
        parameter.copy_(placement.to_local(values))


def build_encoder(context: ParallelContext, dtype: torch.dtype) -> Encoder:
    """Drawn."""
    encoder = Encoder(context, dtype)
    draw(encoder, ENCODER_MAP, context)
    return encoder


def build_decoder(context: ParallelContext, dtype: torch.dtype) -> list[Decoder]:
    """This rank's stages, drawn."""
    ranges = context.layout.stage_layers(LAYERS)[context.pipeline.rank]
    stages = [
        Decoder(
            CONFIG,
            context,
            layers=layers,
            embedding=context.is_first_stage and number == 0,
            head=context.is_last_stage and number == len(ranges) - 1,
            dtype=dtype,
        )
        for number, layers in enumerate(ranges)
    ]
    for stage in stages:
        draw(stage, DECODER_MAP, context)
    return stages


@dataclass(frozen=True)
class Waiting:
    """What a rank was fed: rows of its run of tokens, and features of which it takes these, or all."""

    rows: Tensor
    features: FedFeatures
    numbers: Tensor | None

    def taken(self) -> TokenFeatures:
        features = self.features()
        return TokenFeatures(self.rows, features if self.numbers is None else features[self.numbers])


@dataclass(frozen=True)
class Pictured:
    """A microbatch of text with pictures.

    Attributes:
        text: the tokens, or a context rank's share of them.
        pictures: `[patches, PATCH]` float64 of each picture.
        places: `[features]` int64, which tokens of the whole microbatch the features stand for.
        features: what a rank was fed, with the tokens of its run that they stand for.
    """

    text: PackedBatch
    pictures: tuple[Tensor, ...]
    places: Tensor
    features: Waiting | None = None

    @property
    def tokens(self) -> Tensor:
        return self.text.tokens

    def share_for(self, context: ParallelContext) -> Pictured:
        return replace(self, text=cut_batch(self.text, context))


@dataclass(frozen=True)
class PictureFeeding(Feeding):
    """Each token that stands for a feature reads it; `sparing` ranks are sent only what their own tokens read."""

    context: ParallelContext
    sparing: bool = True

    def items(self, batch: Pictured) -> list[Item]:
        return [Item(len(picture), len(picture) ** 1.5) for picture in batch.pictures]

    def encode(self, stage: nn.Module, chosen: Sequence[Chosen]) -> Tensor:
        patches = [each.batch.pictures[item] for each in chosen for item in each.items]
        dtype = next(stage.parameters()).dtype
        return stage(torch.cat([*patches, torch.zeros(0, PATCH, dtype=torch.float64)]).to(dtype))

    def wanted(self, batch: Pictured, context: ParallelContext) -> Sequence[Tensor]:
        if not self.sparing:
            return super().wanted(batch, context)
        return [features for _, features in self._shown(batch)]

    def fed(self, batch: Pictured, features: FedFeatures) -> Pictured:
        context = self.context
        if not context.is_first_stage:
            return batch
        rows, numbers = self._shown(batch)[context.context.rank * context.tensor.size + context.tensor.rank]
        return replace(batch, features=Waiting(rows, features, None if self.sparing else numbers))

    def _shown(self, batch: Pictured) -> list[tuple[Tensor, Tensor]]:
        """For each tensor rank of each context rank: rows of its run that show features, and which."""
        feature_at = torch.full((len(batch.text.tokens),), -1)
        feature_at[batch.places] = torch.arange(len(batch.places))
        found = []
        for rows in rows_of_ranks(batch.text, self.context):
            run = -(-len(rows) // self.context.tensor.size)
            for tensor in range(self.context.tensor.size):
                shown = feature_at[rows[tensor * run : (tensor + 1) * run]]
                places = (shown >= 0).nonzero().squeeze(1)
                found.append((places, shown[places]))
        return found


def forward_step(model: nn.Module, batch: Any, hidden: Tensor | None) -> LossTerms | Tensor:
    """Next-token loss."""
    out = model(batch.text, hidden, None if batch.features is None or hidden is not None else batch.features.taken())
    if model.head is None:
        return out
    return LossTerms(out.sum(), (batch.text.labels != IGNORED_LABEL).sum())


def microbatch(number: int) -> Pictured:
    """The `number`-th: 26 tokens in three sequences, with zero to three pictures of one to seven patches."""
    generator = torch.Generator().manual_seed(number)
    lengths = [9, 6, 11]
    tokens, labels = (torch.randint(VOCABULARY, (sum(lengths),), generator=generator) for _ in range(2))
    labels[: number % 4] = IGNORED_LABEL
    sizes = [[], [3, 7], [5], [1, 2, 6]][number % 4]
    pictures = tuple(torch.randn(size, PATCH, generator=generator, dtype=torch.float64) for size in sizes)
    places = torch.randperm(sum(lengths), generator=generator)[: sum(sizes)].sort().values
    return Pictured(PackedBatch.from_lengths(tokens, labels, lengths), pictures, places)
