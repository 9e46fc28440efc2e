"""What of a run file does not fit this machine's devices and ops, without touching an accelerator."""

from __future__ import annotations

from loong_core.config import RunConfig
from loong_core.device import discover
from loong_core.errors import Fault
from loong_kernels import registry


def machine_faults(config: RunConfig) -> list[Fault]:
    """Whether the device has a known name, and each implementation in `kernels` exists."""
    names = [found.name for found in discover()]
    faults = []
    if config.device != "auto" and config.device not in names:
        faults.append(
            Fault("device", f"no device is called {config.device!r}", f"known here: auto, {', '.join(names)}")
        )
    try:
        with registry.using(config.kernels):
            pass
    except registry.KernelChoiceError as error:
        faults += [Fault("kernels", each) for each in error.faults]
    return faults
