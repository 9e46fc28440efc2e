"""Degrees of parallelism, and which ranks they put together.

Ranks are numbered so that the axes that talk most are neighbours: tensor innermost, then context, data, pipeline.
Experts factor the same ranks of a pipeline stage a second time: expert-tensor innermost, then expert, expert-data. All
of it is arithmetic on rank numbers; `loong_core.parallel.context` turns it into process groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod

from loong_core.errors import Fault
from loong_core.parallel.stage_split import LayerCosts, split_evenly, stages_of_ranks

Groups = list[list[int]]
"""A partition of ranks: each inner list is one group, its members in the order of their rank within the group."""


@dataclass(frozen=True)
class Layout:
    """How the ranks of one component share its work; every degree is at least 1.

    Attributes:
        tensor: ranks that share each matrix (and, with sequence parallelism, each sequence between the matrices).
        pipeline: ranks that share the layers.
        virtual_pipeline: stages a pipeline rank holds (interleaved schedule when above 1).
        context: ranks that share each sequence, each with its own tokens of it.
        ulysses: how many of these exchange tokens for heads in attention; the groups of so many form a ring round
            which keys and values are passed. 1 is a ring of all, `context` is no ring.
        expert: ranks that share the experts of a mixture-of-experts layer.
        expert_tensor: ranks that share each matrix of an expert.
        shard: data ranks that share the optimizer's state (and, under the fsdp engine, the weights); 1 lets it follow
            from `replicate`.
        replicate: copies of the sharded state; above 1 gradients are reduced within a shard group, then across copies.
        pipeline_layers: layers of each stage in the order of the model, where they are given by hand; else a rule
            evens out the stages' work.
    """

    tensor: int = 1
    pipeline: int = 1
    virtual_pipeline: int = 1
    context: int = 1
    ulysses: int = 1
    expert: int = 1
    expert_tensor: int = 1
    shard: int = 1
    replicate: int = 1
    pipeline_layers: Sequence[int] | None = None

    def __post_init__(self) -> None:
        if self.pipeline_layers is not None:
            object.__setattr__(self, "pipeline_layers", tuple(self.pipeline_layers))

    @property
    def model(self) -> int:
        """Ranks that hold one copy of the model and one sequence: tensor x pipeline x context."""
        return self.tensor * self.pipeline * self.context

    @property
    def stages(self) -> int:
        """Pipeline stages in all: pipeline x virtual_pipeline."""
        return self.pipeline * self.virtual_pipeline

    @property
    def ring(self) -> int:
        """Ranks, or groups of `ulysses` ranks, round which keys and values are passed: context / ulysses."""
        return self.context // self.ulysses

    def data_for(self, world_size: int) -> int:
        """Data ranks among `world_size` ranks (those that read different samples).

        Raises:
            ValueError: if the degrees do not divide the world size.
        """
        if world_size % self.model:
            raise ValueError(f"{_product(self, _MODEL)} does not divide {world_size} ranks")
        return world_size // self.model

    def shard_for(self, world_size: int) -> int:
        """Ranks that share one copy of the optimizer's state: data x context / replicate."""
        return self.data_for(world_size) * self.context // self.replicate

    def expert_data_for(self, world_size: int) -> int:
        """Ranks that hold the same experts: world_size / (expert_tensor x expert x pipeline)."""
        return world_size // (self.expert_tensor * self.expert * self.pipeline)

    def faults(
        self,
        world_size: int,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
        layers: int | None = None,
        experts: int | None = None,
    ) -> list[Fault]:
        """Everything that keeps this layout from serving `world_size` ranks and a model of the given numbers."""
        found = [
            Fault(f"layout.{degree.name}", f"is {getattr(self, degree.name)}", "a degree is at least 1")
            for degree in fields(self)
            if degree.name != "pipeline_layers" and getattr(self, degree.name) < 1
        ]
        if found:
            return found
        return (
            self._rank_faults(world_size)
            + self._attention_faults(heads, kv_heads)
            + self._layer_faults(layers)
            + self._expert_faults(world_size, experts)
        )

    def _rank_faults(self, world_size: int) -> list[Fault]:
        if world_size % self.model:
            fits = _nearest_divisor(world_size // _common(world_size, self.pipeline * self.context), self.tensor)
            return [
                Fault(
                    "layout",
                    f"{_product(self, _MODEL)} = {self.model} does not divide {world_size} rank"
                    + ("s" if world_size != 1 else ""),
                    f"start a multiple of {self.model} ranks"
                    + (f" or set layout.tensor={fits}" if fits != self.tensor else ""),
                )
            ]
        found = []
        sharers = self.data_for(world_size) * self.context
        if sharers % self.replicate:
            found.append(
                Fault(
                    "layout.replicate",
                    f"{self.replicate} does not divide data x context = {sharers}",
                    f"nearest that does is {_nearest_divisor(sharers, self.replicate)}",
                )
            )
        elif self.shard > 1 and self.shard * self.replicate != sharers:
            found.append(
                Fault(
                    "layout.shard",
                    f"shard={self.shard} x replicate={self.replicate} is not data x context = {sharers}",
                    f"set layout.shard={sharers // self.replicate}, or leave it out to have it derived",
                )
            )
        return found

    def _attention_faults(self, heads: int | None, kv_heads: int | None) -> list[Fault]:
        if self.context % self.ulysses:
            return [
                Fault(
                    "layout.ulysses",
                    f"{self.ulysses} does not divide layout.context={self.context}",
                    f"nearest that does is {_nearest_divisor(self.context, self.ulysses)}; 1 is a ring of all",
                )
            ]
        found = []
        if heads is not None and heads % self.tensor:
            found.append(
                Fault(
                    "layout.tensor",
                    f"{self.tensor} does not divide the model's {heads} attention heads",
                    f"nearest that does is {_nearest_divisor(heads, self.tensor)}",
                )
            )
        elif kv_heads is not None and kv_heads % self.tensor and self.tensor % kv_heads:
            found.append(
                Fault(
                    "layout.tensor",
                    f"{self.tensor} neither divides the model's {kv_heads} key-value heads nor is a multiple of them",
                    f"nearest that does is {_nearest_divisor(kv_heads, self.tensor)}",
                )
            )
        elif heads is not None and (heads // self.tensor) % self.ulysses:
            fits = _common(heads // self.tensor, self.context)
            found.append(
                Fault(
                    "layout.ulysses",
                    f"{self.ulysses} does not divide the {heads // self.tensor} attention heads of a tensor rank",
                    f"set layout.ulysses={fits}: {fits} ranks exchange heads, {self.context // fits} form a ring",
                )
            )
        return found

    def _layer_faults(self, layers: int | None) -> list[Fault]:
        found = []
        if self.virtual_pipeline > 1 and self.pipeline == 1:
            found.append(
                Fault(
                    "layout.virtual_pipeline",
                    f"is {self.virtual_pipeline} but layout.pipeline is 1",
                    "interleaving needs at least 2 pipeline ranks",
                )
            )
        if self.pipeline_layers is not None:
            found += self._pipeline_layers_faults(self.pipeline_layers, layers)
        elif layers is not None and layers < self.stages:
            found.append(
                Fault(
                    "layout.pipeline",
                    f"{_product(self, ('pipeline', 'virtual_pipeline'))} = {self.stages} stages for {layers} layers",
                    "every stage needs a layer",
                )
            )
        return found

    def _pipeline_layers_faults(self, sizes: Sequence[int], layers: int | None) -> list[Fault]:
        where, given = "layout.pipeline_layers", list(sizes)
        if len(sizes) != self.stages:
            stages = f"{_product(self, ('pipeline', 'virtual_pipeline'))} = {self.stages} stages"
            return [Fault(where, f"{given} has {len(sizes)} numbers for {stages}", "give one a stage")]
        if any(size < 0 for size in sizes) or 0 in sizes[1:-1]:
            fix = "only the first stage, which embeds, and the last, which computes the loss, can do without layers"
            return [Fault(where, f"{given} leaves a stage without layers", fix)]
        if layers is not None and sum(sizes) != layers:
            return [Fault(where, f"{given} adds up to {sum(sizes)}, the model has {layers} layers")]
        return []

    def _expert_faults(self, world_size: int, experts: int | None) -> list[Fault]:
        found = []
        if experts is None or experts == 0:
            found += [
                Fault(f"layout.{name}", f"is {getattr(self, name)} but the model has no experts", "leave it at 1")
                for name in ("expert", "expert_tensor")
                if experts == 0 and getattr(self, name) > 1
            ]
        elif experts % self.expert:
            found.append(
                Fault(
                    "layout.expert",
                    f"{self.expert} does not divide the model's {experts} experts",
                    f"nearest that does is {_nearest_divisor(experts, self.expert)}",
                )
            )
        if world_size % self.model == 0 and (world_size // self.pipeline) % (self.expert * self.expert_tensor):
            found.append(
                Fault(
                    "layout.expert",
                    f"{_product(self, ('expert', 'expert_tensor'))} = {self.expert * self.expert_tensor} does not "
                    f"divide the {world_size // self.pipeline} ranks of a pipeline stage",
                    "choose degrees whose product divides tensor x context x data",
                )
            )
        elif (
            not found
            and experts
            and (world_size // self.pipeline // self.tensor) % self.replicate == 0
            and self.expert_data_for(world_size) % self.replicate
        ):
            found.append(
                Fault(
                    "layout.replicate",
                    f"{self.replicate} does not divide the {self.expert_data_for(world_size)} ranks that hold the same "
                    "experts",
                    f"nearest that does is {_nearest_divisor(self.expert_data_for(world_size), self.replicate)}",
                )
            )
        return found

    def stage_layers(self, layers: int, costs: LayerCosts | None = None) -> list[list[range]]:
        """Layers of each stage, `[pipeline rank][virtual stage]`: `pipeline_layers`, or an even split.

        Args:
            layers: of the model.
            costs: what the split is to even out; by default all layers alike, and nearly nothing besides.
        """
        sizes = self.pipeline_layers
        if sizes is None:
            sizes = split_evenly(costs or LayerCosts.equal(layers), self.stages)
        return stages_of_ranks(sizes, self.pipeline)

    def groups(self, world_size: int, axes: Sequence[str], first_rank: int = 0) -> Groups:
        """The groups of ranks that differ only in the named axes.

        Args:
            world_size: ranks of this component.
            axes: of `tensor, context, data, pipeline` (with `ulysses` and `ring` standing for the two factors of
                context, or `replicate` and `shard` for those of data x context), or of `expert_tensor, expert,
                expert_data, pipeline`.
            first_rank: the component's first rank in the world.
        """
        for view in self._views(world_size):
            if all(axis in view for axis in axes):
                return _partition(view, axes, first_rank)
        raise ValueError(f"axes {list(axes)} do not belong to one view of the ranks")

    def _views(self, world_size: int) -> list[dict[str, int]]:
        """Each way of factoring the ranks: axis to degree, innermost first."""
        data, shard = self.data_for(world_size), self.shard_for(world_size)
        experts = {"expert_tensor": self.expert_tensor, "expert": self.expert}
        return [
            {"tensor": self.tensor, "context": self.context, "data": data, "pipeline": self.pipeline},
            {
                "tensor": self.tensor,
                "ulysses": self.ulysses,
                "ring": self.ring,
                "data": data,
                "pipeline": self.pipeline,
            },
            {"tensor": self.tensor, "shard": shard, "replicate": self.replicate, "pipeline": self.pipeline},
            experts | {"expert_data": self.expert_data_for(world_size), "pipeline": self.pipeline},
            experts
            | {
                "expert_shard": self.expert_data_for(world_size) // self.replicate,
                "expert_replicate": self.replicate,
                "pipeline": self.pipeline,
            },
        ]


_MODEL = ("tensor", "pipeline", "context")


def _product(layout: Layout, names: Sequence[str]) -> str:
    return " x ".join(f"{name}={getattr(layout, name)}" for name in names)


def _common(a: int, b: int) -> int:
    """The largest factor of `b` that divides `a`."""
    return max(factor for factor in range(1, b + 1) if b % factor == 0 and a % factor == 0)


def _nearest_divisor(number: int, wanted: int) -> int:
    """The divisor of `number` nearest to `wanted`, the smaller of two."""
    divisors = [candidate for candidate in range(1, number + 1) if number % candidate == 0]
    return min(divisors, key=lambda candidate: (abs(candidate - wanted), candidate))


def _partition(view: dict[str, int], axes: Sequence[str], first_rank: int) -> Groups:
    """Group the ranks of `view` (axis to degree, innermost first) that agree in every axis but `axes`."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for rank in range(prod(view.values())):
        rest, fixed = rank, []
        for axis, degree in view.items():
            rest, index = divmod(rest, degree)
            if axis not in axes:
                fixed.append(index)
        groups.setdefault(tuple(fixed), []).append(first_rank + rank)
    return list(groups.values())
