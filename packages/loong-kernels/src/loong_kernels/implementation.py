"""What an implementation of an op tells of itself, and what was decided for a shape class."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ANY_DEVICE = "*"
"""In `Implementation.devices`: every torch device type."""


def _always() -> str | None:
    return None


def _everything(case: Any) -> str | None:
    return None


@dataclass(frozen=True)
class Implementation:
    """One way to compute an op.

    Attributes:
        name: by which a run's configuration may ask for it; unique within an op and device type.
        op: the op it computes.
        devices: torch device types it serves (`"cuda"`, `"cpu"`), or `("*",)` for all.
        fn: takes what the op's reference takes; or `"module:function"`, imported only when it may serve.
        priority: the highest that supports a case serves it; None: only where asked for by name.
        available: why this machine lacks what it needs, or None if it has it. Asked when a decision is due, so it may
            import.
        supports: given the op's case (a named tuple that says the shape class), why it cannot serve it, or None if it
            can.
        needs: hardware and software it needs, in words for a person.
        uses: toolchains it stands on (`"triton"`), by which a device may exclude it.
        nondeterministic_on: device types where the same inputs may give other bits; elsewhere the conformance suite
            wants the same.
        origin: the distribution that registered it; filled in by the registry.
    """

    name: str
    op: str
    devices: tuple[str, ...]
    fn: Callable[..., Any] | str
    priority: int | None = 0
    available: Callable[[], str | None] = _always
    supports: Callable[[Any], str | None] = _everything
    needs: str = "any device"
    uses: frozenset[str] = frozenset()
    nondeterministic_on: frozenset[str] = frozenset()
    origin: str = "loong-kernels"

    def serves_device(self, device_type: str) -> bool:
        """Whether it is meant for this torch device type."""
        return ANY_DEVICE in self.devices or device_type in self.devices

    def obstacle(self, device_type: str) -> str | None:
        """Why it cannot serve on this device type on this machine, whatever the case; None if it may."""
        if not self.serves_device(device_type):
            return f"is for {' and '.join(self.devices)}, not {device_type}"
        return self.available()

    def load(self) -> Callable[..., Any]:
        """Its function, imported now if it was given by name."""
        if not isinstance(self.fn, str):
            return self.fn
        module, _, attribute = self.fn.partition(":")
        return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class Declined:
    """An implementation that did not serve a case, and why."""

    implementation: str
    reason: str


@dataclass(frozen=True)
class Decision:
    """What serves a shape class of an op.

    Attributes:
        op: name of the op.
        case: the shape class, the op's named tuple.
        implementation: name of what serves.
        origin: the distribution it comes from.
        why: in words for a person.
        declined: what would have come first, and why it did not.
    """

    op: str
    case: Any
    implementation: str
    origin: str
    why: str
    declined: tuple[Declined, ...] = field(default=())

    def __str__(self) -> str:
        """One line, for the start of a run."""
        shape = ", ".join(f"{name}={str(value).removeprefix('torch.')}" for name, value in self.case._asdict().items())
        passed = "".join(f"; not {one.implementation}: {one.reason}" for one in self.declined)
        return f"{self.op} [{shape}]: {self.implementation} ({self.why}{passed})"
