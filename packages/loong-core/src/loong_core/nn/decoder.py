"""A decoder-only language model, or the part of one that a pipeline stage holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.data.batch import PackedBatch
from loong_core.nn.block import Block
from loong_core.nn.decoder_config import DecoderConfig, RotaryConfig
from loong_core.nn.key_value_cache import KeyValueCache
from loong_core.nn.moe.load import RoutingRecord
from loong_core.nn.norm import ResidualNorm
from loong_core.nn.rotary import Rotary
from loong_core.nn.token_features import TokenFeatures
from loong_core.nn.vocabulary import VocabularyParallelEmbedding, VocabularyParallelHead
from loong_core.parallel.context import ParallelContext


class Decoder(nn.Module):
    """Embedding, blocks, final norm and head.

    Parameters carry global layer numbers (`layers.12.attention.qkv.weight`) whichever stage they are on. Weights are
    uninitialised: draw them (`loong_core.nn.initialize`) or load them.

    Args:
        config: the whole model.
        context: its layout; each tensor rank builds its own shards.
        layers: the blocks of this stage, all by default.
        embedding: whether this stage embeds tokens.
        head: whether it computes logits and loss.
        dtype: of the parameters.
    """

    def __init__(
        self,
        config: DecoderConfig,
        context: ParallelContext,
        *,
        layers: range | None = None,
        embedding: bool = True,
        head: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if context.pipeline.size > 1 and any(
            each.router.aux_coefficient and each.router.aux_scope == "model" for each in config.mixtures
        ):
            raise ValueError(
                f"{context.pipeline.size} pipeline ranks, each with some of the layers, cannot take an auxiliary loss "
                "over all layers together: choose the scope 'layer'"
            )
        self.config = config
        self.parallel = context
        width, vocabulary = config.hidden_size, config.vocab_size
        self.embedding = VocabularyParallelEmbedding(vocabulary, width, context, dtype) if embedding else None
        numbers = range(config.num_layers) if layers is None else layers
        self.layers = nn.ModuleDict(
            {
                str(number): Block(width, config.blocks[number], config.norm_eps, context, dtype, number)
                for number in numbers
            }
        )
        self.norm = ResidualNorm(width, config.norm_eps, context, dtype) if head else None
        self.head = self._make_head(dtype) if head else None
        self._rotaries: dict[RotaryConfig, Rotary] = {
            config.blocks[number].mixer.rotary: Rotary(config.blocks[number].mixer.rotary) for number in numbers
        }

    def _make_head(self, dtype: torch.dtype) -> VocabularyParallelHead:
        """The head; tied, it uses the embedding's table, or on a stage of its own a copy that is not counted twice."""
        config = self.config
        table = self.embedding.weight if config.tie_embeddings and self.embedding is not None else None
        head = VocabularyParallelHead(config.vocab_size, config.hidden_size, self.parallel, dtype, table)
        if config.tie_embeddings and table is None:
            head.weight.shared = True  # type: ignore[attr-defined]
        return head

    @property
    def tied_table(self) -> nn.Parameter | None:
        """This stage's copy of the table that embedding and head share, None if it has none.

        Where first and last stage are different ranks, their copies' gradients have to be summed by the engine.
        """
        if not self.config.tie_embeddings:
            return None
        end = self.embedding if self.embedding is not None else self.head
        return None if end is None else end.weight

    def forward(
        self, batch: PackedBatch, hidden: Tensor | None = None, features: TokenFeatures | None = None
    ) -> Tensor:
        """Run this stage.

        Args:
            batch: the whole microbatch, on every stage; with several context ranks this one's share of it.
            hidden: `[tokens / tensor, hidden_size]` from the stage before; None on the first.
            features: what stands in the place of tokens, on the stages whose embedding or layers take it.

        Returns:
            With a head the loss of each token, `[tokens]` float32 (float64 for a float64 model), 0 where the label is
            ignored; without one this stage's hidden states, shaped as `hidden`. Auxiliary losses of routers are not in
            it: their gradients join in backward, in the unit of the sum over tokens.
        """
        record = None
        if self.config.mixtures and torch.is_grad_enabled():
            record = RoutingRecord(batch.total_tokens, batch.trained_tokens, len(self.config.mixtures))
        stream, added = self._transform(batch, hidden, features, record=record)
        if self.norm is None or self.head is None:
            return stream if added is None else stream + added
        return self.head(self.norm(stream, added)[0], batch.labels)

    def logits(
        self,
        batch: PackedBatch,
        hidden: Tensor | None = None,
        cache: KeyValueCache | None = None,
        features: TokenFeatures | None = None,
    ) -> Tensor:
        """Scores of every next token, `[tokens, vocab_size]` in the model's dtype; labels are not looked at.

        Args:
            batch: the tokens; with a cache the new ones only, at the positions that follow (see `KeyValueCache`).
            hidden: from the stage before; None on the first.
            cache: keys and values of earlier tokens; the batch's are added to it.
            features: what stands in the place of tokens.

        Raises:
            ValueError: on a stage without a head.
        """
        if self.norm is None or self.head is None:
            raise ValueError("this pipeline stage has no head: ask the last one for logits")
        stream, added = self._transform(batch, hidden, features, cache)
        if cache is not None:
            cache.advance(batch)
        return self.head.logits(self.norm(stream, added)[0], batch.tokens.shape[0])

    @property
    def has_routers(self) -> bool:
        """Whether the model has routers, on this stage or another."""
        return bool(self.config.mixtures)

    def _transform(
        self,
        batch: PackedBatch,
        hidden: Tensor | None,
        features: TokenFeatures | None,
        cache: KeyValueCache | None = None,
        record: RoutingRecord | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Embedding (on the stage that has it) and blocks: the residual stream, and what is still to be added to it."""
        stream = self.embedding(batch.tokens) if self.embedding is not None else hidden
        if stream is None:
            raise ValueError("this pipeline stage has no embedding and was given no hidden states")
        if features is not None and self.embedding is not None:
            stream = features.put_into(stream)
        rotations = {
            config: rotary.tables(batch.position_ids, stream.dtype) for config, rotary in self._rotaries.items()
        }
        added = None
        for number, block in self.layers.items():
            rotation = rotations[self.config.blocks[int(number)].mixer.rotary]
            stream, added = block(stream, added, batch, rotation, cache, record)
            if features is not None:
                added = features.added_after(int(number), added)
        return stream, added
