"""One context rank's share of a batch of samples.

Attention has no mask here, so every token is the same work: each sample is cut in as many equal runs as there are
groups of the ring, and the tokens of a group in equal runs among its Ulysses ranks. Nothing is padded.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from loong_core.data.context_cut import ContextShare, Numbers, RingStep
from loong_core.parallel.context import ParallelContext
from loong_kernels import SequencePairs

if TYPE_CHECKING:
    from loong_dit.batch import DiffusionBatch


def cut_diffusion_batch(batch: DiffusionBatch, context: ParallelContext) -> DiffusionBatch:
    """This context rank's share of a whole batch.

    Args:
        batch: the same on every context rank, on the host.
        context: its axes `ulysses` and `ring`.

    Raises:
        ValueError: there are fewer tokens of a sample than groups of the ring, or of a group than Ulysses ranks.
    """
    ring, ulysses = context.ring, context.ulysses
    lengths = batch.cu_seqlens.diff().numpy().astype(np.int64)
    if lengths.min() < ring.size or lengths.sum() // ring.size < ulysses.size:
        raise ValueError(
            f"samples of {lengths.min()} to {lengths.max()} tokens cannot be shared by {ring.size * ulysses.size} "
            "context ranks; lower layout.context"
        )
    held = _lengths_by_group(lengths, ring.size)  # [groups, samples]
    firsts = np.cumsum(lengths) - lengths + np.cumsum(held, axis=0) - held
    group_rows = _runs(firsts[ring.rank], held[ring.rank])
    cuts = [number * len(group_rows) // ulysses.size for number in range(ulysses.size + 1)]
    rows = group_rows[cuts[ulysses.rank] : cuts[ulysses.rank + 1]]
    own = held[ring.rank]
    steps = [RingStep(_pairs(own, held[(ring.rank - number) % ring.size])) for number in range(ring.size)]
    index = torch.from_numpy(rows)
    share = ContextShare(
        int(lengths.sum()),
        torch.tensor(batch.trained_samples),
        tuple(stop - start for start, stop in pairwise(cuts)),
        tuple(int(each.sum()) for each in held),
        tuple(steps),
    )
    samples_of_rows = np.searchsorted(batch.cu_seqlens.numpy()[1:], rows, side="right")
    runs_of_rows = np.searchsorted(batch.run_bounds.numpy()[1:], rows, side="right")
    own_runs, run_lengths = np.unique(runs_of_rows, return_counts=True)
    return replace(
        batch,
        patches=batch.patches[index],
        positions=batch.positions[index],
        cu_seqlens=_bounds(own),
        max_seqlen=int(own.max()),
        uniform_length=int(own[0]) if (own == own[0]).all() else None,
        timesteps=batch.timesteps[torch.from_numpy(own_runs)],
        run_bounds=_bounds(run_lengths),
        text=_own_keys(batch.text, batch.text_pairs, samples_of_rows),
        text_pairs=_own_pairs(batch.text_pairs, samples_of_rows),
        image=None if batch.image is None else _own_keys(batch.image, batch.image_pairs, samples_of_rows),
        image_pairs=None if batch.image_pairs is None else _own_pairs(batch.image_pairs, samples_of_rows),
        target=None if batch.target is None else batch.target[index],
        weights=None if batch.weights is None else batch.weights[index],
        trained_samples=batch.trained_samples if context.context.rank == 0 else 0,
        share=share,
        rows=index,
    )


def _lengths_by_group(lengths: Numbers, groups: int) -> Numbers:
    """How many tokens of each sample each group of the ring has, `[groups, samples]`; what is over goes round."""
    base, over = np.divmod(lengths, groups)
    dealt_before = np.cumsum(over) - over
    turn = (np.arange(groups)[:, None] - dealt_before) % groups
    return base + (turn < over)


def _pairs(queries: Numbers, keys: Numbers) -> SequencePairs:
    return SequencePairs(_bounds(queries), _bounds(keys), int(queries.max()), int(keys.max()), causal=False)


def _own_samples(samples_of_rows: Numbers) -> tuple[Numbers, Numbers]:
    return np.unique(samples_of_rows, return_counts=True)


def _own_pairs(pairs: SequencePairs | None, samples_of_rows: Numbers) -> SequencePairs:
    """The pairs of the samples of which this rank has tokens."""
    assert pairs is not None
    own, counts = _own_samples(samples_of_rows)
    return _pairs(counts, pairs.cu_seqlens_k.diff().numpy().astype(np.int64)[own])


def _own_keys(keys: Tensor, pairs: SequencePairs | None, samples_of_rows: Numbers) -> Tensor:
    """The rows of the samples of which this rank has tokens."""
    assert pairs is not None
    own, _ = _own_samples(samples_of_rows)
    lengths = pairs.cu_seqlens_k.diff().numpy().astype(np.int64)
    firsts = np.cumsum(lengths) - lengths
    return keys[torch.from_numpy(_runs(firsts[own], lengths[own]))]


def _runs(firsts: Numbers, lengths: Numbers) -> Numbers:
    """The numbers of runs, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(firsts - before, lengths)


def _bounds(lengths: Numbers) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
