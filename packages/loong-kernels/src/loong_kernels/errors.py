"""Errors of the registry, told to the person who chose."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from loong_kernels.implementation import Declined


class KernelChoiceError(ValueError):
    """An implementation was asked for by name and cannot be had, or nothing serves a case.

    Attributes:
        exit_status: of a command that it ends: the choice is the user's input.
        faults: one complete sentence or more for each impossible choice: what was asked, why it cannot be, what can.
        declined: where a call could not be served, what was asked and each one's reason.
    """

    exit_status = 2

    def __init__(self, faults: list[str], declined: tuple[Declined, ...] = ()) -> None:
        self.faults = faults
        self.declined = declined
        super().__init__("\n".join(faults))
