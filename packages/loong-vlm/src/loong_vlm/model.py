"""A vision-language model, or the part of one that a pipeline stage holds."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from loong_core.nn.decoder import Decoder
from loong_core.nn.key_value_cache import KeyValueCache
from loong_core.nn.token_features import TokenFeatures
from loong_core.nn.vocabulary import VocabularyParallelHead
from loong_core.parallel.collectives import exchange_rows
from loong_core.parallel.context import ParallelContext
from loong_vlm.data.batch import Pictures, VisionBatch
from loong_vlm.encoder import build_parts, smallest_picture
from loong_vlm.encoding_plan import plan_encoding
from loong_vlm.features import ImageFeatures
from loong_vlm.parts import ModelParts


class VisionLanguageModel(nn.Module):
    """A decoder whose placeholder tokens give way to image features, with tower and projector on its first stage.

    Weights are uninitialised: draw them (`loong_core.nn.initialize`) or load them.

    Args:
        parts: the whole model.
        context: the language model's layout; each of its tensor ranks holds tower and projector whole.
        encodes: whether tower and projector are in it; without them, batches bring their features (`VisionBatch.fed`).
        layers: the language model's blocks on this stage, all by default.
        embedding: whether this stage embeds tokens, and then images.
        head: whether it computes logits and loss.
        dtype: of the parameters.
    """

    def __init__(
        self,
        parts: ModelParts,
        context: ParallelContext,
        *,
        layers: range | None = None,
        embedding: bool = True,
        head: bool = True,
        encodes: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.parts = parts
        self.parallel = context
        self.reads_features = embedding or min(layers or [0]) < parts.projector.deep
        self.tower = self.projector = None
        if embedding and encodes:
            alone = ParallelContext.single(context.device)
            self.tower, self.projector = build_parts(parts, alone, context, dtype)
        self.language = Decoder(
            parts.language.config, context, layers=layers, embedding=embedding, head=head, dtype=dtype
        )

    @property
    def head(self) -> VocabularyParallelHead | None:
        """The language model's head, None on a stage without one."""
        return self.language.head

    @property
    def tied_table(self) -> nn.Parameter | None:
        """See `Decoder.tied_table`."""
        return self.language.tied_table

    @property
    def has_routers(self) -> bool:
        """Whether the language model has routers, on this stage or another."""
        return self.language.has_routers

    def forward(self, batch: VisionBatch, hidden: Tensor | None = None) -> Tensor:
        """Run this stage; as `Decoder.forward`.

        Args:
            batch: the microbatch (with several context ranks this one's share of its text), text on the model's device.
            hidden: from the stage before; None on the first.
        """
        return self.language(batch.text, hidden, self.token_features(batch))

    def logits(self, batch: VisionBatch, hidden: Tensor | None = None, cache: KeyValueCache | None = None) -> Tensor:
        """Scores of every next token, `[tokens, vocab_size]`; as `Decoder.logits`."""
        features = self.token_features(batch) if batch.pictures.count else None
        return self.language.logits(batch.text, hidden, cache, features)

    def encode(self, pictures: Pictures) -> ImageFeatures:
        """The features of some images, in their order."""
        if self.tower is None or self.projector is None:
            raise ValueError("this pipeline stage has no vision tower: the first one encodes images")
        return self.projector(self.tower(pictures.patches, pictures.grid_thw), pictures.grid_thw)

    def token_features(self, batch: VisionBatch) -> TokenFeatures | None:
        """What stands in the place of this rank's placeholder tokens; None on a stage that has no use for it."""
        if self.tower is None:
            return batch.fed() if batch.fed is not None and self.reads_features else None
        axis, device = self.parallel.tensor_context, batch.tokens.device
        route, rows = plan_encoding(batch, self.parts, axis.rank, self.parallel.tensor.size)
        (own,) = route.own
        pictures = batch.pictures.select(own) if own else smallest_picture(self.parts)
        found = self.encode(pictures.to(device, non_blocking=True))
        together = torch.cat([found.embeddings, *found.deep], dim=1)  # [features, (1 + deep) * hidden]
        sent = together[route.send.to(device, non_blocking=True)]
        shown = exchange_rows(sent, axis, route.sent, route.received)[route.order.to(device, non_blocking=True)]
        embeddings, *deep = shown.split(self.parts.projector.hidden_size, dim=1)
        return TokenFeatures(rows.to(device, non_blocking=True), embeddings, tuple(deep))
