"""What the project asks of a device: the first of its seams.

Everything that differs between kinds of accelerator and is not a kernel is answered by one `Device`: how ranks bind to
it and talk to each other, its memory figures, its peak arithmetic rate, what it can run, its random state and events,
and the environment its runtime likes. `cpu` and `cuda` are built in; other packages add theirs by the entry-point group
`loong.devices`, whose entries name a `Device` subclass (called without arguments) or an instance.

A `Device` is cheap to make: its constructor and `availability` neither start a runtime nor raise.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class Availability:
    """Whether a device can be used in this process.

    Attributes:
        ok: True if it can.
        reason: what was found if `ok` (for example `1 x NVIDIA H200`), else what is missing and how to get it.
    """

    ok: bool
    reason: str


@dataclass(frozen=True)
class MemoryFigures:
    """Memory of one rank's device, in bytes.

    Attributes:
        allocated: in use by this process now.
        peak: the most in use by this process since the start or the last `reset_peak_memory`.
        total: what the device has, or what this process may use of it where that is less.
    """

    allocated: int
    peak: int
    total: int


@dataclass(frozen=True)
class Hardware:
    """What one device is.

    Attributes:
        name: its maker's name for it.
        memory: bytes that programs can use.
    """

    name: str
    memory: int


@dataclass(frozen=True)
class Capabilities:
    """What a device runs.

    Attributes:
        bf16: arithmetic in bfloat16.
        fp8: fp8 matmul recipes, by name: `tensorwise`, `rowwise`, `blockwise`, `mxfp8`; empty if none.
        triton: Triton kernels compile for it.
        graphs: its launches can be captured and replayed (CUDA graphs).
    """

    bf16: bool
    fp8: frozenset[str] = frozenset()
    triton: bool = False
    graphs: bool = False


@runtime_checkable
class TimingEvent(Protocol):
    """A moment in a device's queue of work; `torch.cuda.Event` is one."""

    def record(self) -> None:
        """Mark the moment at which everything queued so far has run."""

    def synchronize(self) -> None:
        """Wait until that moment has passed."""

    def query(self) -> bool:
        """Whether it has passed."""
        ...

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this moment to a later one; both have passed."""
        ...


class HostCopy:
    """A copy under way between a device and its host, of a device that copies at once: there is nothing to wait for.

    Args:
        copy: the copy.
    """

    def __init__(self, copy: Tensor) -> None:
        self.copy = copy

    def arrived(self) -> Tensor:
        """The copy; what is queued on the device from here on finds it complete, and may overwrite its source."""
        return self.copy


class HostCopies:
    """Copies between a device and its host; of a device without queues of its own for them, made at once."""

    def to_host(self, source: Tensor) -> HostCopy:
        """Begin to copy what `source` holds once the device has done what is queued now; leave it until `arrived`."""
        return HostCopy(source.detach().to("cpu", copy=True))

    def to_device(self, source: Tensor, device: torch.device) -> HostCopy:
        """Begin to copy a host's tensor that `to_host` made."""
        return HostCopy(source.to(device, copy=True))


class Device(ABC):
    """One kind of device, seen from one rank; `conformance` holds what every one must do."""

    name: str
    """What a user writes in `device:` and `LOONG_DEVICE`: `cpu`, `cuda`, ..."""

    torch_type: str
    """Type of the `torch.device` that tensors live on. A runtime that answers torch's CUDA calls says `cuda`."""

    communication_backend: str
    """Backend name for `torch.distributed.init_process_group`."""

    answers_for: frozenset[str] = frozenset()
    """Names of other devices that look available only because this one's runtime answers their torch calls. Where this
    device is available, those are not: an accelerator that poses as CUDA lists `cuda`."""

    @property
    def is_cuda_like(self) -> bool:
        """Whether torch's CUDA calls (streams, events, `tensor.cuda()`) work on this device."""
        return self.torch_type == "cuda"

    @abstractmethod
    def availability(self) -> Availability:
        """Whether this process can use the device, with what was found or what is missing. Never raises."""

    @abstractmethod
    def bind(self, local_rank: int) -> torch.device:
        """Make the `local_rank`-th device of this machine this process's own and return it.

        Raises:
            UserError: the machine has too few of them.
        """

    @abstractmethod
    def memory(self) -> MemoryFigures:
        """Memory of the bound device."""

    @abstractmethod
    def reset_peak_memory(self) -> None:
        """Start the peak of `memory` anew from what is in use now."""

    @abstractmethod
    def peak_flops(self, dtype: torch.dtype) -> float | None:
        """The most floating-point operations a second one bound device can do in dense matmuls of `dtype`.

        None if not known: the utilisation of the device is then not reported.
        """

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What the device runs; asked only where `availability` is ok."""

    @abstractmethod
    def seed(self, seed: int) -> None:
        """Seed every torch generator this rank draws from: the host's and the device's."""

    @abstractmethod
    def random_state(self) -> Tensor:
        """State of every generator `seed` sets, `[bytes]` uint8 on the host."""

    @abstractmethod
    def set_random_state(self, state: Tensor) -> None:
        """Continue from a `random_state`, bit for bit.

        Raises:
            UserError: the state was not taken on this kind of device.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all work queued on the bound device has run."""

    @abstractmethod
    def event(self) -> TimingEvent:
        """A new event for timing, not yet recorded."""

    def host_copies(self) -> HostCopies:
        """A new maker of copies between the bound device and the host, which run beside the device's other work."""
        return HostCopies()

    def environment_defaults(self) -> dict[str, str]:
        """Environment variables the device's runtime and libraries do well with. What the user has set wins."""
        return {}

    def hardware(self) -> Hardware | None:
        """What one device of this machine is, learnt without starting its runtime; None where that is not possible.

        A run is then checked against its memory before ranks start.
        """
        return None

    def describe(self) -> str:
        """One line for people: what the device is and how many of them there are."""
        return f"{self.name}: {self.availability().reason}"
