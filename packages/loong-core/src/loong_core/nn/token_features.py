"""Features that stand in the place of tokens: what an image, or another signal, is to a language model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class TokenFeatures:
    """Features for some of this rank's run of tokens.

    Attributes:
        rows: `[shown]` int64, which of this rank's tokens they stand for, each once.
        embeddings: `[shown, hidden_size]`, in the place of these tokens' embeddings; None where no token is embedded.
        deep: `[shown, hidden_size]` each: the n-th is added to these tokens' hidden states after layer n (DeepStack,
            arXiv:2406.04334); None of a layer that another stage has.
    """

    rows: Tensor
    embeddings: Tensor | None
    deep: tuple[Tensor | None, ...] = ()

    def put_into(self, embedded: Tensor) -> Tensor:
        """Embedded tokens, `[tokens, hidden_size]`, with the features in their place."""
        if self.embeddings is None:
            raise ValueError("these features are for layers of a stage that embeds no tokens")
        return embedded.index_copy(0, self.rows, self.embeddings.to(embedded.dtype))

    def added_after(self, layer: int, added: Tensor) -> Tensor:
        """What layer number `layer` adds to the residual stream, `[tokens, hidden_size]`, with what goes in there."""
        features = self.deep[layer] if layer < len(self.deep) else None
        return added if features is None else added.index_add(0, self.rows, features.to(added.dtype))
