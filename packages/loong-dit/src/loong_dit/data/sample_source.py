"""What training reads samples from: a finished cache, or media that are encoded as they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from loong_dit.data.cache import CachedSample, SampleSize
    from loong_dit.data.manifest import Manifest


class SampleSource(Protocol):
    """Samples by number, the same whenever they are read."""

    @property
    def manifest(self) -> Manifest:
        """What they are, with a hash that stands for all of it."""
        ...

    @property
    def samples(self) -> Sequence[SampleSize]:
        """Size and caption of each."""
        ...

    def __len__(self) -> int:
        """How many there are."""
        ...

    def read(self, number: int) -> CachedSample:
        """One of them, on the host."""
        ...

    def empty_text(self) -> Tensor:
        """`[text tokens, text_dim]` of the empty caption."""
        ...
