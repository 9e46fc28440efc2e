"""The two ends of a language model: token ids to hidden states, and hidden states to loss or logits.

Both hold a table with a row for each token id, of which each tensor rank has a run of equal length. Where the degree
does not divide the vocabulary the last rows are padding: never looked up, left out of the softmax, not exported.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from loong_core.nn.linear import share
from loong_core.nn.main_gradient import main_gradient
from loong_core.parallel.collectives import gather_features, gather_tokens, sum_to_tokens
from loong_core.parallel.context import ParallelContext
from loong_kernels import embedding, linear_cross_entropy


def vocabulary_rows(vocab_size: int, tensor: int) -> int:
    """Rows of the table on each tensor rank: the vocabulary divided by the degree, rounded up."""
    return -(-vocab_size // tensor)


def vocabulary_table(vocab_size: int, hidden_size: int, context: ParallelContext, dtype: torch.dtype) -> nn.Parameter:
    """This tensor rank's rows, `[vocabulary_rows, hidden_size]`, not yet drawn or loaded."""
    rows = vocabulary_rows(vocab_size, context.tensor.size)
    return share(nn.Parameter(torch.empty(rows, hidden_size, device=context.device, dtype=dtype)), 0, context)


class VocabularyParallelEmbedding(nn.Module):
    """Rows of the table by token id: `[tokens]` to this rank's run of them, `[tokens / tensor, hidden_size]`."""

    def __init__(self, vocab_size: int, hidden_size: int, context: ParallelContext, dtype: torch.dtype) -> None:
        super().__init__()
        self.axis = context.tensor
        self.weight = vocabulary_table(vocab_size, hidden_size, context, dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look `tokens` up, `[tokens]` int64; each rank its own rows, zero for the others', then their sum."""
        found = embedding(
            tokens,
            self.weight,
            vocab_start=self.axis.rank * self.weight.shape[0] if self.axis.size > 1 else None,
            weight_grad_into=main_gradient(self.weight),
        )
        return sum_to_tokens(found, self.axis)


class VocabularyParallelHead(nn.Module):
    """The output projection, with its cross-entropy.

    Args:
        vocab_size: number of token ids.
        hidden_size: width of the hidden states.
        context: whose tensor ranks share the table.
        dtype: of the table.
        table: the embedding's, where the two are tied and on the same stage; None to make one.
    """

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        context: ParallelContext,
        dtype: torch.dtype,
        table: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.axis = context.tensor
        self.weight = vocabulary_table(vocab_size, hidden_size, context, dtype) if table is None else table

    def forward(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Loss of each token, `[tokens]` float32 (float64 for float64), from this rank's run of hidden states."""
        return linear_cross_entropy(
            gather_tokens(hidden, self.axis, labels.shape[0]),
            self.weight,
            labels,
            group=self.axis.group if self.axis.size > 1 else None,
            vocab_start=self.axis.rank * self.weight.shape[0],
            valid_vocab=self.vocab_size,
            weight_grad_into=main_gradient(self.weight),
        )

    def logits(self, hidden: Tensor, tokens: int) -> Tensor:
        """Scores of every token id, `[tokens, vocab_size]`, from this rank's run of hidden states."""
        scores = F.linear(gather_tokens(hidden, self.axis, tokens), self.weight)
        return gather_features(scores, self.axis)[:, : self.vocab_size]
