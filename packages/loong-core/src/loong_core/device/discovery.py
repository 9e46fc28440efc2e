"""Which devices there are, which can be used, and which one a run gets.

Built-in devices come first, then what installed packages declare in the entry-point group `loong.devices`. Nothing is
swallowed: a plug-in that does not load is listed with its error, and a choice that cannot be had is an error that says
what is missing.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Literal

from loong_core.device.cpu import CpuDevice
from loong_core.device.cuda import CudaDevice
from loong_core.device.protocol import Device
from loong_core.errors import UserError

ENTRY_POINT_GROUP = "loong.devices"
DEVICE_VARIABLE = "LOONG_DEVICE"
BUILT_IN = "built in"

State = Literal["available", "unavailable", "failed"]


@dataclass(frozen=True)
class Found:
    """One device that this environment knows of.

    Attributes:
        name: the device's name; of a plug-in that failed, its entry point's name.
        origin: `built in`, or the distribution, its version and the object it declares.
        state: `available`; `unavailable` (its runtime or hardware is missing); `failed` (the plug-in is broken).
        reason: what was found, what is missing, or the error.
        device: the device, None if `failed`.
    """

    name: str
    origin: str
    state: State
    reason: str
    device: Device | None


@dataclass(frozen=True)
class Selection:
    """The device a run gets, and why, in words for the log."""

    device: Device
    why: str
    short: str = ""
    """The same without what was passed over: `cpu, chosen automatically (AMD EPYC, 2 threads)`."""


def discover() -> list[Found]:
    """Every device, built-in ones first, plug-ins in the order of their names. Never raises for a broken plug-in.

    Plug-ins are examined first: a runtime that takes over torch's calls must be loaded before anyone makes one.
    """
    built_in = [CpuDevice(), CudaDevice()]
    taken = {device.name: BUILT_IN for device in built_in}
    plugins: list[Found] = []
    for entry in _sorted_entries():
        plugins.append(_load(entry, taken | {other.name: other.origin for other in plugins}))
    return _without_lookalikes([*(_examine(device, BUILT_IN) for device in built_in), *plugins])


def select(name: str | None = None) -> Selection:
    """The device to run on.

    Args:
        name: a device's name, or None or `auto`: then what `LOONG_DEVICE` names, else cuda, else the first plug-in
            that is available, else cpu.

    Raises:
        UserError: the named device is unknown, broken or unavailable.
    """
    source = "chosen by name"
    if name in (None, "", "auto"):
        name = os.environ.get(DEVICE_VARIABLE, "").strip() or None
        source = f"chosen by {DEVICE_VARIABLE}"
    if name in (None, "auto"):
        return _automatic(discover())
    found = discover()
    match = next((each for each in found if each.name == name), None)
    if match is None:
        raise UserError(_unknown(name, source, found))
    if match.state != "available" or match.device is None:
        verb = "is unavailable" if match.state == "unavailable" else "cannot be loaded"
        usable = ", ".join(each.name for each in found if each.state == "available")
        raise UserError(f"device {name!r} ({source}; {match.origin}) {verb}: {match.reason}. Available here: {usable}")
    return Selection(match.device, f"{name}, {source}: {match.reason}", f"{name}, {source} ({match.reason})")


def apply_environment(device: Device) -> dict[str, str]:
    """Set the device's environment defaults where the user has set nothing; returns what was set.

    Runtimes read most of these when they start: call it before the first tensor is put on the device.
    """
    chosen = {key: value for key, value in device.environment_defaults().items() if key not in os.environ}
    os.environ.update(chosen)
    return chosen


def _sorted_entries() -> list[EntryPoint]:
    """Declared plug-ins by name."""
    return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: (entry.name, entry.value))


def _origin(entry: EntryPoint) -> str:
    """Who declared an entry point: distribution, version, object."""
    distribution = f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else "an unnamed distribution"
    return f"{distribution} ({entry.value})"


def _load(entry: EntryPoint, taken: dict[str, str]) -> Found:
    """Load one plug-in. Whatever it raises is its own fault and becomes the reason."""
    origin = _origin(entry)
    try:
        loaded = entry.load()
        device = loaded() if isinstance(loaded, type) else loaded
        if not isinstance(device, Device):
            raise TypeError(f"it is a {type(device).__name__}, not a loong_core.device.Device")
        if device.name in taken:
            raise ValueError(f"its name {device.name!r} is taken ({taken[device.name]})")
    except Exception as error:
        return Found(entry.name, origin, "failed", f"{type(error).__name__}: {error}", None)
    return _examine(device, origin)


def _examine(device: Device, origin: str) -> Found:
    """Ask a device whether it can be used."""
    try:
        availability = device.availability()
    except Exception as error:
        return Found(device.name, origin, "failed", f"availability() raised {type(error).__name__}: {error}", None)
    return Found(device.name, origin, "available" if availability.ok else "unavailable", availability.reason, device)


def _without_lookalikes(found: list[Found]) -> list[Found]:
    """Mark devices unavailable whose torch calls another available device answers."""
    answered = {
        name: each
        for each in found
        if each.device is not None and each.state == "available"
        for name in each.device.answers_for
    }
    return [
        Found(
            each.name, each.origin, "unavailable", f"torch's {each.name} calls are answered by {by.name}", each.device
        )
        if (by := answered.get(each.name)) is not None and each.state == "available"
        else each
        for each in found
    ]


def _automatic(found: Iterable[Found]) -> Selection:
    """cuda, else the first plug-in available, else cpu; the reason tells, in short, what was passed over."""
    found = list(found)
    order = sorted(found, key=lambda each: {"cuda": 0, "cpu": 2}.get(each.name, 1) if each.origin == BUILT_IN else 1)
    passed: list[str] = []
    for each in order:
        if each.state == "available" and each.device is not None:
            because = f"; not {'; not '.join(passed)}" if passed else ""
            why = f"{each.name}, chosen automatically"
            return Selection(each.device, f"{why}: {each.reason}{because}", f"{why} ({each.reason})")
        passed.append(f"{each.name} ({each.reason.split(';')[0]})")
    raise UserError("no device is available, not even the cpu: " + "; ".join(passed))


def _unknown(name: str, source: str, found: list[Found]) -> str:
    """Message for a name that no device has."""
    names = [each.name for each in found]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}" if near else ""
    return (
        f"no device is called {name!r} ({source}){hint}. Known here: {', '.join(names)}. Others come with packages "
        f"that declare one in the entry-point group {ENTRY_POINT_GROUP!r}"
    )
