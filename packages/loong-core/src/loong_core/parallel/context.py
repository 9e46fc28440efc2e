"""One component's process groups, handed down when its modules are built.

There is no global state: a module that communicates was given the `Axis` it communicates over. Components with layouts
of their own each get their own context over (part of) the same ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from loong_core.errors import ConfigError
from loong_core.parallel.layout import Groups, Layout
from loong_core.parallel.megatron_import import import_megatron

if TYPE_CHECKING:
    from megatron.core.process_groups_config import ProcessGroupCollection


@dataclass(frozen=True)
class Axis:
    """One axis of a layout as a rank sees it.

    Attributes:
        group: the ranks that differ from this one in this axis only; None where torch.distributed is not in use.
        rank: this rank's place in the axis.
        size: the axis's degree. Where it is 1 there is nothing to communicate.
    """

    group: dist.ProcessGroup | None = None
    rank: int = 0
    size: int = 1


ALONE = Axis()
"""The axis of a component that runs on one rank."""


@dataclass(frozen=True, eq=False)
class ParallelContext:
    """Where one component runs: its layout, its device, and its axes.

    Attributes:
        layout: the degrees.
        device: where this rank's tensors live.
        tensor, pipeline, context, data: the axes of dense layers.
        ulysses, ring: context divided in two: ranks that exchange tokens for heads, and those round which keys and
            values are passed.
        data_context: data and context together: ranks that hold the same dense weights.
        tensor_context: tensor and context together: ranks of a pipeline stage that share the same microbatches.
        model: tensor, context and pipeline together: ranks that hold one copy of the model and work on the same
            microbatches.
        shard, replicate: data and context divided another way: ranks that share one copy of the optimizer's state, and
            ranks that hold copies of the same part of it.
        expert, expert_tensor, expert_data: the axes of experts, a second factoring of the same ranks.
        rank, world_size: this rank among the component's ranks.
        first_rank: number of the component's first rank in the world.
    """

    layout: Layout
    device: torch.device
    tensor: Axis = ALONE
    pipeline: Axis = ALONE
    context: Axis = ALONE
    ulysses: Axis = ALONE
    ring: Axis = ALONE
    data: Axis = ALONE
    data_context: Axis = ALONE
    tensor_context: Axis = ALONE
    model: Axis = ALONE
    shard: Axis = ALONE
    replicate: Axis = ALONE
    expert: Axis = ALONE
    expert_tensor: Axis = ALONE
    expert_data: Axis = ALONE
    rank: int = 0
    world_size: int = 1
    first_rank: int = 0
    _megatron: Mapping[str, dist.ProcessGroup | None] = field(default_factory=dict, repr=False)
    _replicas: dict[int, Axis] = field(default_factory=dict, repr=False)

    @property
    def sequence_parallel(self) -> bool:
        """Whether tensor ranks share the tokens between matrices (always, where there are several)."""
        return self.tensor.size > 1

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank embeds (with its first virtual stage)."""
        return self.pipeline.rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank computes the loss (with its last virtual stage)."""
        return self.pipeline.rank == self.pipeline.size - 1

    @staticmethod
    def single(device: torch.device | str = "cpu") -> ParallelContext:
        """The context of one rank by itself; needs no torch.distributed, and has no groups to give to megatron."""
        return ParallelContext(Layout(), torch.device(device))

    @staticmethod
    def build(
        layout: Layout, device: torch.device | str, *, first_rank: int = 0, world_size: int | None = None
    ) -> ParallelContext:
        """Make the process groups of `layout` and this rank's view of them.

        Collective over the whole world, also for ranks outside the component, since groups are made together.

        Args:
            layout: degrees; faults are raised as `ConfigError`.
            device: this rank's device.
            first_rank: where the component's ranks begin in the world.
            world_size: how many ranks it has; all from `first_rank` on by default.
        """
        if world_size is None:
            world_size = dist.get_world_size() - first_rank
        if faults := layout.faults(world_size):
            raise ConfigError(faults)
        maker = _GroupMaker(layout, world_size, first_rank)
        axes = {name: maker.axis(*over) for name, over in _AXES.items()}
        megatron = {name: maker.group(*over) for name, over in _MEGATRON_AXES.items()}
        megatron["embd"], megatron["pos_embd"] = maker.ends_of_pipeline()
        if layout.replicate == 1:
            megatron["inter_dist_opt"] = None
        return ParallelContext(
            layout,
            torch.device(device),
            **axes,  # type: ignore[arg-type]
            rank=dist.get_rank() - first_rank,
            world_size=world_size,
            first_rank=first_rank,
            _megatron=megatron,
        )

    def tensor_replicas(self, copies: int) -> Axis:
        """This rank among the `copies` neighbouring tensor ranks that hold the same shard.

        Key-value heads fewer than tensor ranks are held so; the gradients of such copies have to be summed over this
        axis. Collective over the tensor axis.

        Raises:
            ValueError: if `copies` does not divide the tensor degree.
        """
        if self.tensor.size % copies:
            raise ValueError(f"{copies} copies do not divide layout.tensor={self.tensor.size}")
        if copies == 1 or self.tensor.group is None:
            return ALONE
        if copies not in self._replicas:  # one group for all layers
            first = self.tensor.rank - self.tensor.rank % copies
            ranks = dist.get_process_group_ranks(self.tensor.group)[first : first + copies]
            group: Any = dist.new_group(ranks, use_local_synchronization=True)
            self._replicas[copies] = Axis(group, self.tensor.rank - first, copies)
        return self._replicas[copies]

    @cached_property
    def process_groups(self) -> ProcessGroupCollection:
        """Megatron's collection with every field set: one it finds unset means "skip" or "the whole world" to it."""
        if not self._megatron:
            raise RuntimeError("ParallelContext.single has no process groups: use ParallelContext.build for megatron")
        import_megatron()
        from megatron.core.process_groups_config import ProcessGroupCollection

        groups: dict[str, Any] = dict(self._megatron) | {"hcp": None, "dp_cp_ag": None, "expt_dp_ag": None}
        return ProcessGroupCollection(**groups)


_AXES: dict[str, tuple[str, ...]] = {
    "tensor": ("tensor",),
    "pipeline": ("pipeline",),
    "context": ("context",),
    "ulysses": ("ulysses",),
    "ring": ("ring",),
    "data": ("data",),
    "data_context": ("context", "data"),
    "tensor_context": ("tensor", "context"),
    "model": ("tensor", "context", "pipeline"),
    "shard": ("shard",),
    "replicate": ("replicate",),
    "expert": ("expert",),
    "expert_tensor": ("expert_tensor",),
    "expert_data": ("expert_data",),
}

_MEGATRON_AXES: dict[str, tuple[str, ...]] = {
    "tp": ("tensor",),
    "pp": ("pipeline",),
    "mp": ("tensor", "pipeline"),
    "cp": ("context",),
    "tp_cp": ("tensor", "context"),
    "dp": ("data",),
    "dp_cp": ("context", "data"),
    "dp_cp_gtp_remat": ("context", "data"),
    "tp_dp_cp": ("tensor", "context", "data"),
    "ep": ("expert",),
    "expt_tp": ("expert_tensor",),
    "tp_ep": ("expert_tensor", "expert"),
    "tp_ep_pp": ("expert_tensor", "expert", "pipeline"),
    "tp_ep_pp_with_egtp_remat": ("expert_tensor", "expert", "pipeline"),
    "expt_dp": ("expert_data",),
    "expt_dp_gtp_remat": ("expert_data",),
    "intra_dp_cp": ("shard",),
    "inter_dist_opt": ("replicate",),
    "intra_expt_dp": ("expert_shard",),
    "intra_dist_opt": ("tensor", "shard", "pipeline"),
    "gtp_remat": (),
    "expt_gtp_remat": (),
}
"""Megatron's names for groups, and the axes in which members differ (gtp_remat: a weight sharding not in use)."""


class _GroupMaker:
    """Makes process groups from partitions of the ranks, each distinct partition once.

    Collective: every rank asks for the same partitions in the same order.
    """

    def __init__(self, layout: Layout, world_size: int, first_rank: int) -> None:
        self.layout = layout
        self.world_size = world_size
        self.first_rank = first_rank
        self._made: dict[tuple[tuple[int, ...], ...], dist.ProcessGroup | None] = {}

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """This rank's group over `axes`; None on a rank outside the component."""
        return self._of(self.layout.groups(self.world_size, axes, self.first_rank))

    def axis(self, *axes: str) -> Axis:
        """This rank's axis over `axes`."""
        group = self.group(*axes)
        return ALONE if group is None else Axis(group, group.rank(), group.size())

    def ends_of_pipeline(self) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
        """Groups of first and last stage (which share tied embeddings), and of the first stage alone.

        A rank that is in neither gets a group of its own, in which megatron's reductions change nothing.
        """
        pipelines = self.layout.groups(self.world_size, ("pipeline",), self.first_rank)
        both = [[ranks[0], ranks[-1]] if len(ranks) > 1 else ranks for ranks in pipelines]
        between = [[rank] for ranks in pipelines for rank in ranks[1:-1]]
        return self._of(both + between), self.group()

    def _of(self, partition: Groups) -> dist.ProcessGroup | None:
        key = tuple(tuple(group) for group in partition)
        if key not in self._made:
            group = dist.new_subgroups_by_enumeration(partition)[0]
            self._made[key] = group if isinstance(group, dist.ProcessGroup) else None
        return self._made[key]
