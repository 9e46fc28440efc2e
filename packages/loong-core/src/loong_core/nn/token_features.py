"""Features that stand in the place of tokens: what an image, or another signal, is to a language model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenFeatures:
    """Features for some of this rank's run of tokens.

    Attributes:
        rows: `[shown]` int64, which of this rank's tokens they stand for, each once.
        embeddings: `[shown, hidden_size]`, in the place of these tokens' embeddings.
        deep: `[shown, hidden_size]` each: the n-th is added to these tokens' hidden states after layer n (DeepStack,
            arXiv:2406.04334).
    """

    rows: Tensor
    embeddings: Tensor
    deep: tuple[Tensor, ...] = ()

    def put_into(self, embedded: Tensor) -> Tensor:
        """Embedded tokens, `[tokens, hidden_size]`, with the features in their place."""
        return embedded.index_copy(0, self.rows, self.embeddings.to(embedded.dtype))

    def added_after(self, layer: int, added: Tensor) -> Tensor:
        """What layer number `layer` adds to the residual stream, `[tokens, hidden_size]`, with what goes in there."""
        if layer >= len(self.deep):
            return added
        return added.index_add(0, self.rows, self.deep[layer].to(added.dtype))
