"""What a microbatch costs: quadratic in the length of each text and of each image, separately.

Attention of one sample is quadratic in its tokens and all else linear; attention of a tower is quadratic in the patches
of one frame and all else linear. A sample's cost is the sum over both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEATURES = ("token_pairs", "tokens", "samples", "patch_pairs", "patches")
"""What costs are counted in: of each sample its tokens squared, its tokens, itself; of each frame of an image its
patches squared, its patches."""


def features(tokens: int, grids: Sequence[tuple[int, int, int]] = ()) -> Floats:
    """`[5]`, the `FEATURES` of one sample.

    Args:
        tokens: its places in a sequence, those of its images among them.
        grids: of each of its images frames, rows and columns of patches.
    """
    pairs = sum(frames * (rows * columns) ** 2 for frames, rows, columns in grids)
    patches = sum(frames * rows * columns for frames, rows, columns in grids)
    return np.array([tokens**2, tokens, 1, pairs, patches], np.float64)


@dataclass(frozen=True)
class CostModel:
    """Cost of one unit of each of the `FEATURES`, in any unit: only ratios decide.

    Attributes:
        token_pairs: of a pair of tokens of one sample.
        tokens: of a token.
        samples: of a sample.
        patch_pairs: of a pair of patches of one frame.
        patches: of a patch.
    """

    token_pairs: float
    tokens: float
    samples: float
    patch_pairs: float
    patches: float

    def __post_init__(self) -> None:
        values = self.coefficients
        if not np.isfinite(values).all() or (values < 0).any() or not values.any():
            raise ValueError(f"costs must be finite, not negative and not all zero: {asdict(self)}")

    @property
    def coefficients(self) -> Floats:
        """`[5]`, in the order of `FEATURES`."""
        return np.array([getattr(self, name) for name in FEATURES], np.float64)

    def cost(self, counted: Floats) -> Floats:
        """`[..., 5]` features to `[...]` costs, equal in every bit on every machine."""
        # Term by term: a matrix product may sum in another order on another processor.
        total = np.zeros(counted.shape[:-1])
        for place, coefficient in enumerate(self.coefficients):
            total = total + counted[..., place] * coefficient
        return total

    @staticmethod
    def of(coefficients: Sequence[float] | Floats) -> CostModel:
        """From `[5]` coefficients in the order of `FEATURES`."""
        return CostModel(*(float(value) for value in coefficients))

    @staticmethod
    def from_shapes(
        *,
        text_parameters: float,
        text_layers: int,
        text_attention_width: int,
        tower_parameters: float,
        tower_layers: int,
        tower_width: int,
    ) -> CostModel:
        """Floating-point operations of forward and backward, the model to begin with before anything is measured.

        A parameter costs 6 operations a token, a causal pair of tokens `6 x width` a layer (half of the square, two
        products, forward and twice backward), a pair of patches `12 x width`.

        Args:
            text_parameters: of the language model, those that multiply a token (active experts only).
            text_layers: layers with attention.
            text_attention_width: heads times head dimension.
            tower_parameters: of tower and projector.
            tower_layers: layers of the tower whose attention is over a whole frame.
            tower_width: heads times head dimension of the tower.
        """
        return CostModel(
            token_pairs=6.0 * text_layers * text_attention_width,
            tokens=6.0 * text_parameters,
            samples=0.0,
            patch_pairs=12.0 * tower_layers * tower_width,
            patches=6.0 * tower_parameters,
        )


def imbalance(loads: Floats) -> float:
    """The heaviest load over the mean: 1 is even; with `r` equal ranks, the step takes so many times the ideal."""
    mean = float(loads.mean())
    return float(loads.max()) / mean if mean > 0 else 1.0
