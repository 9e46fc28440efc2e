"""What modules keep for backward, moved to the host between their forward and their backward.

A call of a module is a group. When the call ends, what autograd keeps of it (parameters apart) begins to travel to the
host; its memory on the device goes once the next group's call has ended, so copies have that long to run beside the
work. In backward a group's first use of anything brings the whole group back, if it is not on its way already, and
starts to bring the group before it. The last group of a forward, whose backward comes next, never waits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import ref

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from loong_core.device.protocol import Device, HostCopies, HostCopy

LEAST_BYTES = 1 << 20
"""What is smaller stays on the device: copying it takes longer than it is worth."""


class Offloader:
    """Moves what the modules of one model keep. Groups are formed in the order in which modules are called.

    Args:
        device: where they run.
        least_bytes: smaller memories stay.
    """

    def __init__(self, device: Device, least_bytes: int) -> None:
        self._copies = device.host_copies()
        self._least = least_bytes
        self._last: ref[_Group] | None = None

    @contextmanager
    def keeping(self, module: nn.Module) -> Iterator[None]:
        """Around one call of a module."""
        before = self._last() if self._last is not None else None
        group = _Group(self._copies, self._least, module, before)
        with saved_tensors_hooks(group.pack, group.unpack):
            yield
        group.leave()
        if before is not None:
            before.release()
        self._last = ref(group)


class _Memory:
    """One piece of device memory that a group keeps: whole, whichever parts of it autograd has saved.

    It is held by the tensors that autograd has saved of it (`_Saved`), so it goes with the last of these.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.here: Tensor | None = _bytes_of(storage)  # [bytes] uint8 on the device
        self.away: HostCopy | None = None
        self.coming: HostCopy | None = None
        self.device = storage.device

    def leave(self, copies: HostCopies) -> None:
        if self.here is not None and self.away is None:
            self.away = copies.to_host(self.here)

    def release(self) -> None:
        """Give the device's memory up; what is queued from here on may use it."""
        if self.away is not None and self.here is not None:
            self.away.arrived()
            self.here = None

    def fetch(self, copies: HostCopies) -> None:
        if self.here is None and self.coming is None:
            assert self.away is not None
            self.coming = copies.to_device(self.away.arrived(), self.device)

    def memory(self) -> Tensor:
        """The bytes on the device, once they are there."""
        if self.here is None:
            assert self.coming is not None
            self.here, self.coming = self.coming.arrived(), None
        return self.here


@dataclass(frozen=True)
class _Saved:
    """A tensor that autograd has saved, as a view of a memory."""

    group: _Group
    memory: _Memory
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int

    def tensor(self) -> Tensor:
        storage = self.memory.memory().untyped_storage()
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.shape, self.stride)  # type: ignore[call-overload]


class _Group:
    """One call of one module."""

    def __init__(self, copies: HostCopies, least: int, module: nn.Module, before: _Group | None) -> None:
        self._copies = copies
        self._least = least
        self._before = ref(before) if before is not None else None
        self._parameters = {each.untyped_storage().data_ptr() for each in module.parameters()}
        self._by_address: dict[int, _Memory] = {}
        self._memories: list[ref[_Memory]] = []

    def pack(self, tensor: Tensor) -> Tensor | _Saved:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if storage.nbytes() < self._least or address in self._parameters or type(tensor) is not Tensor:
            return tensor
        memory = self._by_address.get(address)
        if memory is None:
            memory = self._by_address[address] = _Memory(storage)
        return _Saved(self, memory, tensor.dtype, tensor.shape, tensor.stride(), int(tensor.storage_offset()))

    def unpack(self, saved: Tensor | _Saved) -> Tensor:
        if isinstance(saved, Tensor):
            return saved
        self.fetch()
        before = self._before() if self._before is not None else None
        tensor = saved.tensor()
        if before is not None:
            before.fetch()
        return tensor

    def leave(self) -> None:
        """Begin to copy; no address is looked up any more, since memory may be used again from here on."""
        memories, self._by_address = list(self._by_address.values()), {}
        for memory in memories:
            memory.leave(self._copies)
        self._memories = [ref(memory) for memory in memories]

    def release(self) -> None:
        for memory in self._alive():
            memory.release()

    def fetch(self) -> None:
        """Begin to bring everything back, what was kept last first."""
        for memory in reversed(self._alive()):
            memory.fetch(self._copies)

    def _alive(self) -> list[_Memory]:
        return [memory for each in self._memories if (memory := each()) is not None]


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))  # type: ignore[call-overload]
