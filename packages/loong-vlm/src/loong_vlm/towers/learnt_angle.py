"""The gradient of a position that is learnt, as the angles by which rotary embedding turns queries and keys.

The ops that rotate take tables of cosines and sines as constants. Of `y = (y1, y2) = R(a) x` the derivative by the
angle is `(-y2, y1)`: what a learnt angle adds to backward needs the rotated rows and their gradients only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class LearntAngle:
    """Rows that are turned by a parameter.

    Attributes:
        rows: `[rows]` int64, which of the tokens, on their device.
        angles: `[head_dim / 2]`, with a gradient; the tables hold its cosine and sine in those rows.
    """

    rows: Tensor
    angles: Tensor

    def follow(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """The same rotated queries and keys `[tokens, heads, head_dim]`, whose backward reaches the angles."""
        return _Followed.apply(q, k, self.rows, self.angles)  # type: ignore[no-any-return]


class _Followed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, rows: Tensor, angles: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(q[rows], k[rows], rows, angles)
        return q.view_as(q), k.view_as(k)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, Tensor]:
        *rotated, rows, angles = ctx.saved_tensors
        wide = torch.promote_types(angles.dtype, torch.float32)
        of_angles = torch.zeros_like(angles, dtype=wide)
        for values, gradient in zip(rotated, gradients, strict=True):
            first, second = values.to(wide).chunk(2, dim=-1)
            of_first, of_second = gradient[rows].to(wide).chunk(2, dim=-1)
            of_angles += (of_second * first - of_first * second).sum((0, 1))
        return *gradients, None, of_angles.to(angles.dtype)  # type: ignore[return-value]
