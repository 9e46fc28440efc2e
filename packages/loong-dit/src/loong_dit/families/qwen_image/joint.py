"""Texts and images as joint sequences: each sample's text tokens, then its image tokens, and back."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loong_dit.batch import DiffusionBatch


@dataclass(frozen=True, eq=False)
class JointSequences:
    """Where sequences of text and image begin and end, and where their tokens come from.

    Attributes:
        cu_seqlens: `[samples + 1]` int32.
        max_seqlen: at least the length of the longest.
        uniform_length: of each, None if they differ.
        order: `[text and image tokens]` int64, which of all texts followed by all images each token is.
        back: `[text and image tokens]` int64, where each of all texts followed by all images has gone.
        share: always None.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    uniform_length: int | None
    order: Tensor
    back: Tensor
    share: None = None

    @staticmethod
    def of(batch: DiffusionBatch) -> JointSequences:
        """Those of a batch that is whole."""
        pairs = batch.text_pairs
        samples = torch.arange(pairs.runs, device=batch.text.device)
        of_text = torch.repeat_interleave(samples, pairs.cu_seqlens_k.diff(), output_size=batch.text.shape[0])
        of_image = torch.repeat_interleave(samples, pairs.cu_seqlens_q.diff(), output_size=batch.patches.shape[0])
        order = torch.cat([of_text, of_image]).argsort(stable=True)
        longest = pairs.max_seqlen_q + pairs.max_seqlen_k
        uniform = longest if pairs.uniform(batch.patches.shape[0], batch.text.shape[0]) else None
        return JointSequences(pairs.cu_seqlens_q + pairs.cu_seqlens_k, longest, uniform, order, order.argsort())

    def join(self, text: Tensor, image: Tensor) -> Tensor:
        """`[text tokens, ...]` and `[image tokens, ...]` to `[all tokens, ...]`."""
        return torch.cat([text, image])[self.order]

    def part(self, joint: Tensor, text_tokens: int) -> tuple[Tensor, Tensor]:
        """The texts' and the images' tokens again."""
        apart = joint[self.back]
        return apart[:text_tokens], apart[text_tokens:]


def text_positions(batch: DiffusionBatch) -> Tensor:
    """`[text tokens, 3]` int64: a caption goes on, on all axes, where the largest image of its sample ends."""
    pairs = batch.text_pairs
    samples = torch.arange(pairs.runs, device=batch.text.device)
    lengths = pairs.cu_seqlens_k.diff()
    of_image = torch.repeat_interleave(samples, pairs.cu_seqlens_q.diff(), output_size=batch.patches.shape[0])
    of_text = torch.repeat_interleave(samples, lengths, output_size=batch.text.shape[0])
    ends = torch.zeros(pairs.runs, dtype=torch.int64, device=batch.text.device)
    ends.scatter_reduce_(0, of_image, batch.positions[:, 1:].amax(dim=1) + 1, "amax")
    places = torch.arange(batch.text.shape[0], device=batch.text.device) - pairs.cu_seqlens_k[:-1][of_text]
    return (ends[of_text] + places)[:, None].expand(-1, 3)
