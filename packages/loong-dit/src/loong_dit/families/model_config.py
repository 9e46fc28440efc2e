"""What the framework asks of a family's hyperparameters and of its module, whatever the family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from loong_dit.batch import DiffusionBatch


class DiffusionConfig(Protocol):
    """Hyperparameters of a transformer."""

    @property
    def patch_size(self) -> tuple[int, int, int]:
        """Frames, rows and columns of latents in a token."""
        ...

    @property
    def num_layers(self) -> int:
        """Blocks."""
        ...

    @property
    def num_attention_heads(self) -> int:
        """Heads of every attention."""
        ...

    @property
    def in_channels(self) -> int:
        """Channels of the input latents, conditions beside them included."""
        ...

    @property
    def out_channels(self) -> int:
        """Channels of the latents."""
        ...

    @property
    def text_dim(self) -> int:
        """Width of captions' embeddings."""
        ...

    @property
    def image_dim(self) -> int | None:
        """Width of condition images' embeddings, None where the model takes none."""
        ...

    def flops_per_sample(self, tokens: float, text_tokens: float, *, weight_gradients: bool = True) -> float:
        """Of forward and backward."""
        ...


class DiffusionTransformer(Protocol):
    """A module of a family."""

    def __call__(self, batch: DiffusionBatch) -> Tensor:
        """What it says of each patch, `[tokens, patch_out]`."""
        ...
