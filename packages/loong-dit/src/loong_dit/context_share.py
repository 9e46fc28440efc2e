"""One context rank's share of a batch of samples.

Attention has no mask here, so every token is the same work: each sample is cut in as many equal runs as there are
groups of the ring, and the tokens of a group in equal runs among its Ulysses ranks. Nothing is padded. Where text and
patches are attended to together, a sample is its text and then its patches, and a rank may have text alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from loong_core.data.context_cut import ContextShare, Numbers, RingStep
from loong_core.parallel.context import ParallelContext
from loong_dit.joint_sequences import JointSequences
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
    patches = _lengths(batch.cu_seqlens)
    trained = batch.trained_samples if context.context.rank == 0 else 0
    if batch.joint is not None:
        return replace(_cut_joint(batch, batch.joint, patches, context), trained_samples=trained)
    dealt = _deal(patches, batch.trained_samples, context)
    return replace(
        _with_patches(batch, dealt.rows, dealt.share),
        cu_seqlens=_bounds(dealt.group_lengths),
        max_seqlen=int(dealt.group_lengths.max()),
        uniform_length=_uniform(dealt.group_lengths),
        text=_own_keys(batch.text, batch.text_pairs, dealt.samples),
        text_pairs=_own_pairs(batch.text_pairs, dealt.samples),
        image=None if batch.image is None else _own_keys(batch.image, batch.image_pairs, dealt.samples),
        image_pairs=None if batch.image_pairs is None else _own_pairs(batch.image_pairs, dealt.samples),
        trained_samples=trained,
    )


def _cut_joint(
    batch: DiffusionBatch, joint: JointSequences, patches: Numbers, context: ParallelContext
) -> DiffusionBatch:
    """The share of text and patches together."""
    texts = _lengths(batch.text_pairs.cu_seqlens_k)
    dealt = _deal(texts + patches, batch.trained_samples, context)
    text_tokens = int(texts.sum())
    taken = joint.order.numpy()[dealt.rows]  # among all texts followed by all patches
    is_text = taken < text_tokens
    text_rows, rows = taken[is_text], taken[~is_text] - text_tokens
    own, of_rows = np.unique(dealt.samples, return_inverse=True)
    own_texts, own_patches = (np.bincount(of_rows[chosen], minlength=len(own)) for chosen in (is_text, ~is_text))
    order = torch.from_numpy(np.where(is_text, is_text.cumsum() - 1, is_text.sum() + (~is_text).cumsum() - 1))
    text_index = torch.from_numpy(text_rows)
    return replace(
        _with_patches(batch, rows, dealt.share),
        cu_seqlens=_bounds(own_patches),
        max_seqlen=int(own_patches.max()),
        uniform_length=_uniform(own_patches),
        text=batch.text[text_index],
        text_pairs=_pairs(own_patches, own_texts),
        joint=JointSequences(
            _bounds(dealt.group_lengths),
            int(dealt.group_lengths.max()),
            _uniform(dealt.group_lengths),
            order,
            order.argsort(),
            joint.text_positions[text_index],
            joint.text_timesteps[torch.from_numpy(own)],
            dealt.share,
        ),
    )


@dataclass(frozen=True)
class _Dealt:
    """What a rank gets of sequences of tokens.

    Attributes:
        rows: which of all tokens are its own.
        samples: to which sample each of these belongs.
        group_lengths: tokens of each sample that its group of Ulysses ranks has.
        share: what attention has to know.
    """

    rows: Numbers
    samples: Numbers
    group_lengths: Numbers
    share: ContextShare


def _deal(lengths: Numbers, trained_samples: int, context: ParallelContext) -> _Dealt:
    ring, ulysses = context.ring, context.ulysses
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
    share = ContextShare(
        int(lengths.sum()),
        torch.tensor(trained_samples),
        tuple(stop - start for start, stop in pairwise(cuts)),
        tuple(int(each.sum()) for each in held),
        tuple(steps),
    )
    return _Dealt(rows, np.searchsorted(np.cumsum(lengths), rows, side="right"), own, share)


def _with_patches(batch: DiffusionBatch, rows: Numbers, share: ContextShare) -> DiffusionBatch:
    """The batch with these of its patches, and the runs of one timestep that they are in."""
    index = torch.from_numpy(rows)
    own_runs, run_lengths = np.unique(
        np.searchsorted(batch.run_bounds.numpy()[1:], rows, side="right"), return_counts=True
    )
    return replace(
        batch,
        patches=batch.patches[index],
        positions=batch.positions[index],
        timesteps=batch.timesteps[torch.from_numpy(own_runs)],
        run_bounds=_bounds(run_lengths),
        target=None if batch.target is None else batch.target[index],
        weights=None if batch.weights is None else batch.weights[index],
        share=share,
        rows=index,
    )


def _lengths(bounds: Tensor) -> Numbers:
    return bounds.diff().numpy().astype(np.int64)


def _uniform(lengths: Numbers) -> int | None:
    """The length that all have, None if they differ."""
    return int(lengths[0]) if (lengths == lengths[0]).all() else None


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
    return _pairs(counts, _lengths(pairs.cu_seqlens_k)[own])


def _own_keys(keys: Tensor, pairs: SequencePairs | None, samples_of_rows: Numbers) -> Tensor:
    """The rows of the samples of which this rank has tokens."""
    assert pairs is not None
    own, _ = _own_samples(samples_of_rows)
    lengths = _lengths(pairs.cu_seqlens_k)
    firsts = np.cumsum(lengths) - lengths
    return keys[torch.from_numpy(_runs(firsts[own], lengths[own]))]


def _runs(firsts: Numbers, lengths: Numbers) -> Numbers:
    """The numbers of runs, one after the other."""
    before = np.cumsum(lengths) - lengths
    return np.arange(int(lengths.sum())) + np.repeat(firsts - before, lengths)


def _bounds(lengths: Numbers) -> Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
