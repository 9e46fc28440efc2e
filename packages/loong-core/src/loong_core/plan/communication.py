"""Seconds of communication among the ranks of a layout, over two tiers: links inside a machine and between machines.

Ranks are numbered as in `loong_core.parallel.layout`, and machines hold runs of neighbouring ranks. A collective among
ranks of several machines runs at the links between these, of which it has one for each of its members on a machine, and
never faster than inside.
"""

from __future__ import annotations

from dataclasses import dataclass

from loong_core.parallel.layout import Layout
from loong_core.plan.devices import Cluster
from loong_core.plan.rates import Rates


@dataclass(frozen=True)
class Group:
    """Ranks that communicate, `stride` apart.

    Attributes:
        size: how many.
        on_node: how many of them share a machine.
    """

    size: int
    on_node: int

    @property
    def nodes(self) -> int:
        """How many machines they are on."""
        return -(-self.size // self.on_node)


@dataclass(frozen=True)
class Network:
    """The links of a cluster at the rates that collectives reach."""

    cluster: Cluster
    rates: Rates

    def group(self, size: int, stride: int) -> Group:
        """`size` ranks, each `stride` after the one before."""
        if size * stride <= self.cluster.per_node:
            return Group(size, size)
        return Group(size, max(1, self.cluster.per_node // stride))

    def gather(self, total: float, group: Group) -> float:
        """All-gather to `total` bytes on each rank; also reduce-scatter of as many."""
        if group.size == 1:
            return 0.0
        part = total * (group.size - 1) / group.size
        return part / self._bandwidth(group) + self._latency(group)

    def reduce(self, total: float, group: Group) -> float:
        """All-reduce of `total` bytes: a reduce-scatter, then an all-gather."""
        return 2 * self.gather(total, group)

    def exchange(self, sent: float, group: Group) -> float:
        """All-to-all in which each rank sends `sent` bytes, those for itself included."""
        if group.size == 1:
            return 0.0
        inside, between = self._inside(), self._between()
        near = sent * (group.on_node - 1) / group.size / inside
        far = sent * (group.size - group.on_node) / group.size / between
        return max(near, far) + self._latency(group)

    def send(self, size: float, stride: int) -> float:
        """One message of `size` bytes to the rank `stride` after this one."""
        far = stride >= self.cluster.per_node
        link = self.cluster.accelerator.between if far else self.cluster.accelerator.inside
        return size / (self._between() if far else self._inside()) + link.latency

    def pass_on(self, size: float, group: Group) -> float:
        """Every rank sends `size` bytes to the next of a ring; the slowest link decides."""
        if group.nodes > 1:
            return size / self._between() + self.cluster.accelerator.between.latency
        return size / self._inside() + self.cluster.accelerator.inside.latency

    def _inside(self) -> float:
        return self.cluster.accelerator.inside.bandwidth * self.rates.network

    def _between(self) -> float:
        return self.cluster.accelerator.between.bandwidth * self.rates.network

    def _bandwidth(self, group: Group) -> float:
        if group.nodes == 1:
            return self._inside()
        return min(self._inside(), group.on_node * self._between())

    def _latency(self, group: Group) -> float:
        """One hop along each member of a machine, then along the machines."""
        accelerator = self.cluster.accelerator
        return (group.on_node - 1) * accelerator.inside.latency + (group.nodes - 1) * accelerator.between.latency


@dataclass(frozen=True)
class Groups:
    """The groups of one layout."""

    tensor: Group
    ulysses: Group
    ring: Group
    data: Group
    copies: Group
    expert: Group
    expert_tensor: Group
    expert_data: Group
    pipeline_stride: int

    @staticmethod
    def of(layout: Layout, network: Network) -> Groups:
        """Where the ranks of each axis are. `data` shares the optimizer's state, `copies` hold the same of it."""
        world = network.cluster.size
        shard, experts = layout.shard_for(world), layout.expert_tensor * layout.expert
        return Groups(
            tensor=network.group(layout.tensor, 1),
            ulysses=network.group(layout.ulysses, layout.tensor),
            ring=network.group(layout.ring, layout.tensor * layout.ulysses),
            data=network.group(shard, layout.tensor),
            copies=network.group(layout.replicate, layout.tensor * shard),
            expert=network.group(layout.expert, layout.expert_tensor),
            expert_tensor=network.group(layout.expert_tensor, 1),
            expert_data=network.group(max(1, layout.expert_data_for(world) // layout.replicate), experts),
            pipeline_stride=world // layout.pipeline,
        )
