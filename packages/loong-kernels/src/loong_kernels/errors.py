"""Errors of the registry, told to the person who chose."""

from __future__ import annotations


class KernelChoiceError(ValueError):
    """An implementation was asked for by name and cannot be had.

    Attributes:
        faults: one complete sentence or more for each impossible choice: what was asked, why it cannot be, what can.
    """

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))
