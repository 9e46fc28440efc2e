"""Which part of which tensor a rank holds: the common tongue of Hugging Face files, resume checkpoints and engines.

The canonical name and shape of a parameter are those of its Hugging Face tensor. A rank's parameter may hold a part
of one (tensor parallel), several (fused q, k, v), or both; each such part is a box: offsets and sizes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """A box of one canonical tensor.

    Attributes:
        name: canonical (Hugging Face) tensor name.
        global_shape: shape of the whole tensor.
        offsets: first index of the box in each dimension.
        sizes: extent of the box in each dimension.
    """

    name: str
    global_shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def slices(self) -> tuple[slice, ...]:
        """Index of the box in the whole tensor."""
        return tuple(slice(start, start + size) for start, size in zip(self.offsets, self.sizes, strict=True))

    @property
    def is_whole(self) -> bool:
        """Whether the box is the whole tensor."""
        return self.sizes == self.global_shape

    @staticmethod
    def whole(name: str, shape: tuple[int, ...]) -> Piece:
        """The box that is the whole tensor."""
        return Piece(name, shape, (0,) * len(shape), shape)


@dataclass(frozen=True)
class StatePiece:
    """A piece of the run's state.

    Attributes:
        kind: `weight`, `ema`, or the optimizer's name of a moment (`exp_avg`, `exp_avg_sq`).
        piece: which box of which canonical tensor.
        tensor: its values (`piece.sizes`), None where a reader is asked for them.
    """

    kind: str
    piece: Piece
    tensor: Tensor | None = None

    @property
    def key(self) -> str:
        """Name of the whole tensor in a resume checkpoint: `kind/canonical.name`."""
        return f"{self.kind}/{self.piece.name}"
