"""What a run file's section `fp8` says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Choice = Literal["bf16", "blockwise", "rowwise", "tensorwise", "adaptive"]
"""`adaptive` is blockwise or bf16, whichever a table of measurements says is faster for a call's number of tokens."""


@dataclass(frozen=True)
class PrecisionSettings:
    """In which precision products are made.

    Attributes:
        recipe: of every linear layer of the blocks and of the experts; embedding, norms, routers and head stay as they
            are.
        overrides: other choices, by patterns of Hugging Face weight names; of several that match the last holds.
        error_bound: a layer goes back to bf16 where rounding to 8 bits changes its input, its weight or the gradient
            of its output by more than this, relative to its Euclidean norm.
        check_every: steps from one measurement of those errors to the next, the first step included.
        table: file of measurements for `adaptive`; by default what `loong tune` wrote for the device, or the table
            shipped for it.
    """

    recipe: Choice = "blockwise"
    overrides: Mapping[str, Choice] = field(default_factory=dict)
    error_bound: float = 0.06
    check_every: int = 100
    table: str | None = None
