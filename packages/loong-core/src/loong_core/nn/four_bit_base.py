"""A model's linear layers rounded to 4 bits (`loong_core.nn.four_bit`), and written out again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from loong_core.errors import UserError
from loong_core.nn.four_bit import BLOCK, FourBitWeight, why_not
from loong_core.nn.linear import parallel_linears


@dataclass(frozen=True)
class FourBitBase:
    """How many matrices of this rank are in 4 bits.

    Attributes:
        matrices: how many.
        before, after: bytes of them in the run's precision, and now.
    """

    matrices: int
    before: int
    after: int

    def __str__(self) -> str:
        """One line for people."""
        return (
            f"frozen base in 4 bits: {self.matrices} matrices take {self.after / 2**20:,.1f} MiB in place of "
            f"{self.before / 2**20:,.1f}"
        )


def round_base(stages: Iterable[nn.Module], device: torch.device) -> FourBitBase:
    """Round every linear layer of the stages to 4 bits, one after the other.

    Args:
        stages: with their weights, which may be on the host: only what is left of a matrix then comes to the device.
        device: where the rounded matrices go.

    Raises:
        UserError: bitsandbytes is missing, or a layer's inputs are not a multiple of 64 on this rank.
    """
    if why := why_not(device.type):
        raise UserError(f"lora.base: nf4 {why[0]}; {why[1]}")
    matrices = before = after = 0
    for stage in stages:
        for name, linear in parallel_linears(stage):
            whole: Any = linear.weight
            inputs = whole.shape[1]
            if inputs % BLOCK:
                raise UserError(
                    f"lora.base: nf4 rounds blocks of {BLOCK} numbers, and {name} has {inputs} inputs on a rank; leave "
                    "lora.base out, or choose layout.tensor so that they are a multiple"
                )
            weight = FourBitWeight(whole.detach().to(device))
            matrices, before, after = matrices + 1, before + whole.nbytes, after + weight.nbytes
            del linear.weight
            linear.weight = weight
    return FourBitBase(matrices, before, after)


def write_out_base(stages: Iterable[nn.Module]) -> None:
    """Put matrices of the run's precision, with the rounded values, in the place of those in 4 bits."""
    for stage in stages:
        for _, linear in parallel_linears(stage):
            if isinstance(linear.weight, FourBitWeight):
                weight = nn.Parameter(linear.weight.whole(), requires_grad=False)
                del linear.weight
                linear.weight = weight
