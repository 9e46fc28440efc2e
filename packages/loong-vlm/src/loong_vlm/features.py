"""What towers hand to projectors, and projectors to the language model."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class TowerFeatures:
    """A tower's output for the packed patches of some images.

    Attributes:
        last: `[patches, width]`, in the order of the patches.
        levels: `[patches, width]` each, of the blocks that the tower's config names in `levels`.
    """

    last: Tensor
    levels: tuple[Tensor, ...] = ()


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What the language model reads of some images, image after image.

    Attributes:
        embeddings: `[features, hidden_size]`.
        deep: as `embeddings`, one for each of the first layers of the language model (DeepStack); may be empty.
    """

    embeddings: Tensor
    deep: tuple[Tensor, ...] = ()
