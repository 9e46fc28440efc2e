"""The one form in which samples travel: patches of noisy latents packed end to end, with what conditions them.

Everything random (noise, timestep, dropped captions) has been drawn by the time a batch exists, a sample at a time from
the run's seed and the sample's number, so that no layout and no number of ranks changes a loss.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from loong_core.data.context_cut import ContextShare
from loong_core.parallel.context import ParallelContext
from loong_dit.context_share import cut_diffusion_batch
from loong_dit.joint_sequences import JointSequences
from loong_kernels import SequencePairs


@dataclass(frozen=True, eq=False)
class DiffusionBatch:
    """Samples of any sizes, or one context rank's share of their tokens.

    Attributes:
        patches: `[tokens, patch_in]` float32, each token's patch of the model's input.
        positions: `[tokens, 3]` int64, the patch's place in frames, rows and columns.
        cu_seqlens: `[samples + 1]` int32, start of each sample and, last, the number of tokens.
        max_seqlen: tokens of the longest sample.
        uniform_length: the common length if all samples share one, else None.
        timesteps: `[runs]` float32, 0 (clean) to 1000 (noise), of each run of tokens with one timestep.
        run_bounds: `[runs + 1]` int32, where these runs begin and end.
        text: `[text tokens, text_width]`, the captions' embeddings, packed.
        text_pairs: which tokens see which text tokens.
        joint: text and patches as sequences of both, where a family attends to them together; else None.
        image: `[image tokens, image_width]`, embeddings of condition images, None where the model takes none.
        image_pairs: which tokens see which of these.
        target: `[tokens, patch_out]` float32, what the model is to say; None in sampling.
        weights: `[tokens]` float32, of each token's squared error summed over its elements, such that a sample's sum
            is its weighted mean over elements.
        trained_samples: how many samples' losses are summed here; on one context rank only.
        high_noise: whether the expert of high noise serves the batch, where a model has two.
        share: None where the batch is whole. Else the tensors over tokens are this context rank's, while `cu_seqlens`,
            `max_seqlen` and `uniform_length` describe the tokens of its group of Ulysses ranks (with `joint`, which
            has those of its group, this rank's own).
        rows: `[tokens]` int64, which of the whole batch's tokens these are; None where the batch is whole.
    """

    patches: Tensor
    positions: Tensor
    cu_seqlens: Tensor
    max_seqlen: int
    uniform_length: int | None
    timesteps: Tensor
    run_bounds: Tensor
    text: Tensor
    text_pairs: SequencePairs
    joint: JointSequences | None = None
    image: Tensor | None = None
    image_pairs: SequencePairs | None = None
    target: Tensor | None = None
    weights: Tensor | None = None
    trained_samples: int = 0
    high_noise: bool = False
    share: ContextShare | None = None
    rows: Tensor | None = None

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> DiffusionBatch:
        """The same batch on `device`."""
        moved: dict[str, Any] = {
            field.name: value.to(device, non_blocking=non_blocking)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), (Tensor, SequencePairs, ContextShare, JointSequences))
        }
        return replace(self, **moved)

    def share_for(self, context: ParallelContext) -> DiffusionBatch:
        """This context rank's share of the tokens; conditions that are attended to from outside stay whole."""
        return cut_diffusion_batch(self, context)
