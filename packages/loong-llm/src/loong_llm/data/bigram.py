"""A bigram count model: how far one gets by looking at a single token, and so what a language model has to beat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loong_core.data.token_store import Ids, TokenStore

_CONCENTRATIONS = tuple(10.0**exponent for exponent in np.arange(-2.0, 4.01, 0.25))


@dataclass(frozen=True)
class Bigram:
    """`p(b | a) = (count(a b) + c p(b)) / (count(a) + c)`: counts, shrunk towards the frequencies of single tokens.

    With a prior of `c` observations this is the mean of a Dirichlet posterior (MacKay and Peto 1995); `p(b)` itself is
    shrunk towards the uniform distribution by one observation for each token of the vocabulary.

    Attributes:
        pairs: count of each pair of tokens, by `a * vocab_size + b`, sorted.
        counts: `[pairs]`, how often each occurs.
        before: `[vocab_size]`, how often each token stands first in a pair.
        single: `[vocab_size]`, probability of each token as the second.
        concentration: `c`.
    """

    pairs: NDArray[np.int64]
    counts: NDArray[np.int64]
    before: NDArray[np.int64]
    single: NDArray[np.float64]
    concentration: float

    def loss(self, documents: Iterable[Ids]) -> float:
        """Mean of `-log p` in nats over all tokens but the first of each document, documents never crossed."""
        first, second = _pairs_of(documents)
        key = first * len(self.before) + second
        place = np.minimum(np.searchsorted(self.pairs, key), len(self.pairs) - 1)
        together = np.where(self.pairs[place] == key, self.counts[place], 0)
        likely = (together + self.concentration * self.single[second]) / (self.before[first] + self.concentration)
        return float(-np.log(likely).mean())


def fit_bigram(documents: Sequence[Ids], vocab_size: int) -> Bigram:
    """Count the pairs of `documents`.

    The concentration is the one that predicts every fifth of them best from the others: nothing held out is looked at.
    """
    inner = [document for number, document in enumerate(documents) if number % 5]
    left_out = [document for number, document in enumerate(documents) if number % 5 == 0]
    chosen = 1.0
    if inner and any(len(document) > 1 for document in left_out):
        counted = _count(inner, vocab_size, chosen)
        trials = [Bigram(counted.pairs, counted.counts, counted.before, counted.single, c) for c in _CONCENTRATIONS]
        chosen = min(trials, key=lambda trial: trial.loss(left_out)).concentration
    return _count(documents, vocab_size, chosen)


def bigram_loss(train: TokenStore, held_out: TokenStore, vocab_size: int) -> float:
    """Held-out loss of a bigram model in nats a token, over the tokens that `HeldOut` predicts."""
    model = fit_bigram([train.document(index) for index in range(len(train))], vocab_size)
    return model.loss([held_out.document(index) for index in range(len(held_out))])


def _count(documents: Iterable[Ids], vocab_size: int, concentration: float) -> Bigram:
    first, second = _pairs_of(documents)
    pairs, counts = np.unique(first * vocab_size + second, return_counts=True)
    single = np.bincount(second, minlength=vocab_size) + 1.0
    return Bigram(pairs, counts, np.bincount(first, minlength=vocab_size), single / single.sum(), concentration)


def _pairs_of(documents: Iterable[Ids]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    halves = [(document[:-1], document[1:]) for document in documents]
    first = np.concatenate([np.asarray(half, np.int64) for half, _ in halves])
    return first, np.concatenate([np.asarray(half, np.int64) for _, half in halves])
