"""Features that wait for their microbatch's turn: on the device, or on the host, copied beside the decoder's work."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from loong_core.device.protocol import Device, HostCopy


class FedFeatures:
    """One microbatch's features on this rank, `[wanted, width]`; they gather their gradient.

    Calling it gives them; each forward that uses them calls it anew, no sooner than it needs them.

    Args:
        features: what arrived.
        with_gradients: whether a gradient is wanted.
    """

    def __init__(self, features: Tensor, *, with_gradients: bool) -> None:
        self._leaf = features.clone().requires_grad_(with_gradients)

    def __call__(self) -> Tensor:
        """The features, on the device."""
        return self._leaf

    def gradient(self) -> Tensor:
        """Of all uses together, on the device; zeros where there was none."""
        return torch.zeros_like(self._leaf) if self._leaf.grad is None else self._leaf.grad


class WaitingRoom:
    """The host's memory, in which features wait. The device's is let go of when the next ones are on their way.

    Args:
        device: whose copies run beside its work.
    """

    def __init__(self, device: Device) -> None:
        self.copies = device.host_copies()
        self.newest: HostFeatures | None = None
        self._last: tuple[Tensor, HostCopy] | None = None

    def leave(self, tensor: Tensor) -> HostCopy:
        """Begin to copy to the host; the one before is waited for, and given up on the device."""
        copy = self.copies.to_host(tensor)
        if self._last is not None:
            self._last[1].arrived()
        self._last = tensor, copy
        return copy

    def settle(self) -> None:
        """Give up the last one on the device too."""
        if self._last is not None:
            self._last[1].arrived()
            self._last = None


class HostFeatures(FedFeatures):
    """As `FedFeatures`, waiting on the host; so does their gradient. Each use begins to bring the next ones.

    Args:
        features: what arrived.
        with_gradients: whether a gradient is wanted.
        room: where they wait.
    """

    def __init__(self, features: Tensor, *, with_gradients: bool, room: WaitingRoom) -> None:
        self.following: HostFeatures | None = None
        if room.newest is not None:
            room.newest.following = self
        room.newest = self
        self._room = room
        self._device = features.device
        self._away = room.leave(features)
        self._coming: HostCopy | None = None
        self._gradient: HostCopy | None = None
        self._anchor = torch.empty(0, device=features.device, requires_grad=with_gradients)

    def __call__(self) -> Tensor:
        """The features, on the device, in memory of this use alone."""
        return _Brought.apply(self._anchor, self)

    def gradient(self) -> Tensor:
        """Of all uses together, on the device; zeros where there was none."""
        if self._gradient is None:
            return torch.zeros_like(self._away.copy, device=self._device)
        return self._room.copies.to_device(self._gradient.arrived(), self._device).arrived()

    def fetch(self) -> None:
        """Begin to bring them."""
        if self._coming is None:
            self._coming = self._room.copies.to_device(self._away.arrived(), self._device)

    def bring(self) -> Tensor:
        """They are on the device; the next ones are on their way."""
        self.fetch()
        assert self._coming is not None
        here, self._coming = self._coming.arrived(), None
        if self.following is not None:
            self.following.fetch()
        return here

    def take(self, gradient: Tensor) -> None:
        """Add to the gradient."""
        self._gradient = self._room.leave(gradient if self._gradient is None else self.gradient() + gradient)


class _Brought(Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, waiting: HostFeatures) -> Tensor:
        ctx.waiting = waiting
        return waiting.bring()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        ctx.waiting.take(grads[0])
        return None, None
