"""The features of one round: encoded, sent to where they are wanted, and their gradients on the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from loong_core.engine.components.features import FedFeatures, HostFeatures, WaitingRoom
from loong_core.engine.components.feeding import Chosen, Feeding
from loong_core.engine.components.routes import find_route
from loong_core.parallel.context import Axis, ParallelContext


class Journey:
    """One round of microbatches.

    Each method that communicates only begins to; the next one waits. So the features of one round travel while the next
    is encoded, and so do gradients while a round's backward runs.

    Args:
        batches: whole microbatches, the same on every rank of the replica.
        feeding: the recipe's.
        encoder, decoder: contexts.
        dtype: of features and gradients.
        room: where features wait for the decoder; None: on the device.
    """

    def __init__(
        self,
        batches: Sequence[Any],
        feeding: Feeding,
        encoder: ParallelContext,
        decoder: ParallelContext,
        dtype: torch.dtype,
        room: WaitingRoom | None = None,
    ) -> None:
        self.batches = batches
        self.feeding = feeding
        self._replica = decoder.model
        self._device = decoder.device
        self._dtype = dtype
        items = [feeding.items(batch) for batch in batches]
        wanted = [feeding.wanted(batch, decoder) for batch in batches]
        self.route = find_route(items, wanted, self._replica.rank, self._replica.size, encoder.tensor.size)
        self._features: Tensor | None = None  # this rank's run, with its graph
        self._width = 0
        self._under_way: tuple[Tensor, Any] | None = None
        self._room = room
        self._waiting: list[FedFeatures] = []

    @property
    def encodes(self) -> bool:
        """Whether this rank's lane has anything to encode."""
        return any(self.route.own)

    def encode(self, stage: nn.Module, *, must: bool) -> None:
        """Encode this lane's items; where there are none and the module need not be called, nothing is done.

        Raises:
            ValueError: the recipe returned another number of rows than the items become.
        """
        if not self.encodes and not must:
            return
        chosen = [Chosen(batch, own) for batch, own in zip(self.batches, self.route.own, strict=True)]
        features = self.feeding.encode(stage, chosen)
        needed = int(self.route.send.max()) + 1 if len(self.route.send) else 0
        if features.shape[0] < needed:
            raise ValueError(
                f"the items to encode become {self.route.rows} features on this lane, of which row {needed - 1} of "
                f"this rank's run is wanted, but {type(self.feeding).__name__}.encode returned {features.shape[0]} rows"
            )
        self._features = features

    def send(self, width: int) -> None:
        """Begin to send features to who wants them."""
        self._width = width
        parcel = torch.zeros(0, width, dtype=self._dtype, device=self._device)
        if self._features is not None:
            parcel = self._features.detach().to(self._dtype)[self.route.send.to(self._device)]
        self._under_way = _exchange(parcel, self._replica, self.route.sent, self.route.received)

    def fed(self, *, with_gradients: bool) -> list[Any]:
        """The microbatches with their features; these gather gradients."""
        parts = self._arrived()[self.route.order.to(self._device)].split(self.route.wanted)
        self._waiting = [self._set_down(part, with_gradients) for part in parts]
        return [self.feeding.fed(batch, own) for batch, own in zip(self.batches, self._waiting, strict=True)]

    def _set_down(self, features: Tensor, with_gradients: bool) -> FedFeatures:
        if self._room is None:
            return FedFeatures(features, with_gradients=with_gradients)
        return HostFeatures(features, with_gradients=with_gradients, room=self._room)

    def give_back(self) -> None:
        """Begin to return the gradients to who encoded what they are of."""
        wanted = torch.cat([each.gradient() for each in self._waiting])
        self._waiting = []
        parcel = torch.empty_like(wanted)
        parcel[self.route.order.to(self._device)] = wanted
        self._under_way = _exchange(parcel, self._replica, self.route.received, self.route.sent)

    def backward(self) -> None:
        """Backward through the encoder, where this rank has a graph of it."""
        arrived = self._arrived()
        features, self._features = self._features, None
        if features is None or not features.requires_grad:
            return
        gradient = torch.zeros_like(features)
        gradient.index_add_(0, self.route.send.to(self._device), arrived.to(gradient.dtype))
        torch.autograd.backward(features, gradient)

    def _arrived(self) -> Tensor:
        assert self._under_way is not None
        (arrived, request), self._under_way = self._under_way, None
        if request is not None:
            request.wait()
        return arrived


def _exchange(parcel: Tensor, axis: Axis, sent: list[int], received: list[int]) -> tuple[Tensor, Any]:
    """Begin to send each rank its run of rows; what will have arrived, and what to wait for."""
    if axis.size == 1:
        return parcel, None
    arrived = parcel.new_empty(sum(received), parcel.shape[1])
    return arrived, dist.all_to_all_single(arrived, parcel, received, sent, group=axis.group, async_op=True)
