"""What a component that makes features is to be told by its recipe, and which layouts two components may have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from loong_core.engine.components.features import FedFeatures
from loong_core.errors import ConfigError, Fault
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout


@dataclass(frozen=True)
class Item:
    """One thing to encode, such as an image.

    Attributes:
        rows: how many features it becomes.
        cost: what encoding it takes, relative to others; evens out the ranks.
    """

    rows: int
    cost: float = 1.0


@dataclass(frozen=True)
class Chosen:
    """Some items of one microbatch.

    Attributes:
        batch: the microbatch.
        items: their numbers in it, in order.
    """

    batch: Any
    items: tuple[int, ...]


class Feeding(ABC):
    """How one component's features reach another: what a recipe says of an encoder and its decoder.

    What a microbatch holds and who wants which features is worked out on the host and alike on every rank that works on
    the microbatch, so that no rank has to wait to learn what is to come.
    """

    @abstractmethod
    def items(self, batch: Any) -> Sequence[Item]:
        """What a whole microbatch has to encode, in order; its features are numbered item after item."""

    @abstractmethod
    def encode(self, stage: nn.Module, chosen: Sequence[Chosen]) -> Tensor:
        """Features of some items, `[rows, width]`, items in the order given.

        With several tensor ranks in the encoder's layout each returns its run of the rows, `[ceil(rows / tensor),
        width]`, the last ones filled up. A rank that has nothing to encode may be asked to encode nothing, and then
        still calls the module, so that all ranks do.

        Args:
            stage: the encoder.
            chosen: microbatches with the items to encode; not empty, but there may be no item in it.
        """

    @abstractmethod
    def fed(self, batch: Any, features: FedFeatures) -> Any:
        """The whole microbatch with the features that this rank wants of it, `[wanted, width]`, in that order.

        They are taken (by calling them) in the forward that uses them, since until then they may wait on the host. The
        ranks' gradients of a feature are added up: what one rank computes with it is its own tokens' part.
        """

    def wanted(self, batch: Any, context: ParallelContext) -> Sequence[Tensor]:
        """Which features of a whole microbatch each rank of the decoder's first stage wants, and of the next ones.

        Args:
            batch: the whole microbatch.
            context: the decoder's.

        Returns:
            `[wanted]` int64 numbers of features, on the host, for each tensor rank of each context rank, tensor
            innermost, of the first stage; then, where later stages want any too, of the stages up to the last that
            does. By default all for each of the first stage.
        """
        every = torch.arange(sum(item.rows for item in self.items(batch)))
        return [every] * (context.tensor.size * context.context.size)


def component_contexts(layouts: Mapping[str, Layout], device: torch.device | str) -> dict[str, ParallelContext]:
    """A context for each component, all over the whole world. Collective.

    Args:
        layouts: by component; the first is the one that the others feed.
        device: this rank's.

    Raises:
        ConfigError: a layout that does not serve, with its component's name.
    """
    (_, of_main), *others = layouts.items()
    faults = [
        Fault(f"{name}.{fault.where}", fault.what, fault.fix)
        for name, layout in layouts.items()
        for fault in layout.faults(dist.get_world_size())
    ]
    for name, layout in others:
        faults += feeding_faults(layout, of_main, name)
    if faults:
        raise ConfigError(faults)
    return {name: ParallelContext.build(layout, device) for name, layout in layouts.items()}


def feeding_faults(encoder: Layout, decoder: Layout, name: str) -> list[Fault]:
    """Why a component of this layout cannot feed one of that layout."""
    faults = [
        Fault(f"{name}.layout.{degree}", f"is {getattr(encoder, degree)}", "a component that feeds another has it at 1")
        for degree in ("pipeline", "virtual_pipeline", "context", "expert", "expert_tensor")
        if getattr(encoder, degree) > 1
    ]
    together = decoder.tensor * decoder.context
    if together % encoder.tensor:
        what = (
            f"is {encoder.tensor}, which does not divide the {together} ranks (tensor {decoder.tensor} x context "
            f"{decoder.context}) of a stage that it feeds"
        )
        nearest = max(degree for degree in range(1, encoder.tensor) if together % degree == 0)
        faults.append(Fault(f"{name}.layout.tensor", what, f"the nearest that does is {nearest}"))
    return faults
