"""Captions and patches as joint sequences: each sample's text tokens, then its patches, and back."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from loong_core.data.context_cut import ContextShare
from loong_kernels import SequencePairs


@dataclass(frozen=True, eq=False)
class JointSequences:
    """Where sequences of text and patches begin and end, and where their tokens come from.

    Attributes:
        cu_seqlens: `[samples + 1]` int32.
        max_seqlen: at least the length of the longest.
        uniform_length: of each, None if they differ.
        order: `[text tokens and patches]` int64, which of all texts followed by all patches each token is.
        back: `[text tokens and patches]` int64, where each of all texts followed by all patches has gone.
        text_positions: `[text tokens, 3]` int64.
        text_timesteps: `[captions]` float32, what each caption is modulated by.
        share: None where the sequences are whole. Else `order`, `back` and the texts are this context rank's, while
            `cu_seqlens`, `max_seqlen` and `uniform_length` describe the tokens of its group of Ulysses ranks.
    """

    cu_seqlens: Tensor
    max_seqlen: int
    uniform_length: int | None
    order: Tensor
    back: Tensor
    text_positions: Tensor
    text_timesteps: Tensor
    share: ContextShare | None = None

    @staticmethod
    def of(
        pairs: SequencePairs, positions: Tensor, timesteps: Tensor, run_bounds: Tensor, cu_seqlens: Tensor
    ) -> JointSequences:
        """Those of a whole batch.

        A caption goes on, on all axes, where the largest image of its sample ends, and has the timestep of its sample's
        first run.

        Args:
            pairs: which patches belong to which text tokens.
            positions: `[patches, 3]`.
            timesteps, run_bounds, cu_seqlens: as `DiffusionBatch` has them.
        """
        lengths, counts = pairs.cu_seqlens_k.diff(), pairs.cu_seqlens_q.diff()
        samples = torch.arange(pairs.runs)
        of_text = torch.repeat_interleave(samples, lengths)
        of_patches = torch.repeat_interleave(samples, counts)
        order = torch.cat([of_text, of_patches]).argsort(stable=True)
        longest = pairs.max_seqlen_q + pairs.max_seqlen_k
        uniform = longest if pairs.uniform(len(of_patches), len(of_text)) else None
        ends = torch.zeros(pairs.runs, dtype=torch.int64)
        ends.scatter_reduce_(0, of_patches, positions[:, 1:].amax(dim=1) + 1, "amax")
        places = torch.arange(len(of_text)) - pairs.cu_seqlens_k[:-1][of_text]
        first_runs = torch.searchsorted(run_bounds[1:], cu_seqlens[:-1].contiguous(), right=True)
        return JointSequences(
            pairs.cu_seqlens_q + pairs.cu_seqlens_k,
            longest,
            uniform,
            order,
            order.argsort(),
            (ends[of_text] + places)[:, None].expand(-1, 3).contiguous(),
            timesteps[first_runs],
        )

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> JointSequences:
        """The same on `device`."""
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=non_blocking)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), (Tensor, ContextShare))
        }
        return replace(self, **moved)

    def join(self, text: Tensor, patches: Tensor) -> Tensor:
        """`[text tokens, ...]` and `[patches, ...]` to `[all tokens, ...]`."""
        return torch.cat([text, patches])[self.order]

    def part(self, joint: Tensor, text_tokens: int) -> tuple[Tensor, Tensor]:
        """The texts' and the patches' tokens again."""
        apart = joint[self.back]
        return apart[:text_tokens], apart[text_tokens:]
