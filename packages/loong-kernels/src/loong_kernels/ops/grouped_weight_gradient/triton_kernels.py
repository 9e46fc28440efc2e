"""Gradients of experts' weights in Triton, added to a running float32 sum by the product that makes them.

Each program owns a tile of one expert's sum, multiplies that expert's rows for it, and leaves it alone if there are
none.
"""

# Triton types a kernel's arguments and adds launch options when it is launched.
# ruff: noqa: ANN001, ANN202
# pyright: reportCallIssue=false, reportArgumentType=false

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from loong_kernels.tiles import tiles_over

TILE = {"OUT": 128, "IN": 128, "ROWS": 64}
"""Of the sum, and rows that a step of the product takes."""
LAUNCH = {"num_warps": 4, "num_stages": 3}
"""Two programs on a multiprocessor: one reads and writes its sum while the other multiplies."""


@triton.jit
def _add_rows(
    total, upstream_ptr, x_ptr, start, end, out, column, out_features, in_features,
    ROWS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    row = start + tl.arange(0, ROWS)
    wide, held = row.to(tl.int64)[:, None], (row < end)[:, None]
    of_out, of_column = (out < out_features)[None, :], (column < in_features)[None, :]
    upstream = tl.load(upstream_ptr + wide * out_features + out[None, :], mask=held & of_out, other=0.0)
    x = tl.load(x_ptr + wide * in_features + column[None, :], mask=held & of_column, other=0.0)
    if INTERPRETED:  # the interpreter multiplies no bfloat16
        upstream, x = upstream.to(tl.float32), x.to(tl.float32)
    return tl.dot(tl.trans(upstream), x, total, input_precision="ieee")


@triton.jit
def _add_weight_gradient_kernel(
    upstream_ptr, x_ptr, offsets_ptr, total_ptr, out_features, in_features,
    OUT: tl.constexpr, IN: tl.constexpr, ROWS: tl.constexpr, INTERPRETED: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(2)
    first = tl.load(offsets_ptr + expert - 1, mask=expert > 0, other=0)
    end = tl.load(offsets_ptr + expert)
    if end > first:
        out = tl.program_id(1) * OUT + tl.arange(0, OUT)
        column = tl.program_id(0) * IN + tl.arange(0, IN)
        total = tl.zeros((OUT, IN), dtype=tl.float32)
        if INTERPRETED:  # nor does it take a range whose bounds were loaded
            start = first
            while start < end:
                total = _add_rows(
                    total, upstream_ptr, x_ptr, start, end, out, column, out_features, in_features, ROWS, True
                )
                start += ROWS
        else:
            for start in range(first, end, ROWS):
                total = _add_rows(
                    total, upstream_ptr, x_ptr, start, end, out, column, out_features, in_features, ROWS, False
                )
        target = total_ptr + (expert.to(tl.int64) * out_features + out[:, None]) * in_features + column[None, :]
        mask = (out < out_features)[:, None] & (column < in_features)[None, :]
        tl.store(target, tl.load(target, mask=mask, other=0.0) + total, mask=mask)


def grouped_weight_gradient_triton(upstream: Tensor, x: Tensor, offsets: Tensor, total: Tensor) -> None:
    """The op with a sum, `[experts, out_features, in_features]`."""
    experts, out_features, in_features = total.shape
    grid = (tiles_over(in_features, TILE["IN"]), tiles_over(out_features, TILE["OUT"]), experts)
    _add_weight_gradient_kernel[grid](
        upstream, x, offsets, total, out_features, in_features, **TILE,
        INTERPRETED=triton.knobs.runtime.interpret, **LAUNCH,
    )  # fmt: skip
