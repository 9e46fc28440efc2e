import os
from dataclasses import fields

import pytest
import torch
import torch.distributed as dist

from loong_core.errors import ConfigError
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout


def test_a_single_context_needs_no_process_group():
    context = ParallelContext.single()
    assert (context.tensor.size, context.data.group, context.sequence_parallel) == (1, None, False)
    with pytest.raises(RuntimeError, match=r"use ParallelContext\.build"):
        _ = context.process_groups


def enumerations(layout, world_size):
    """Every group of ours beside megatron's own enumeration of it."""
    os.environ["WORLD_SIZE"] = str(world_size)
    from megatron.core.hyper_comm_grid import HyperCommGrid

    data, edp = layout.data_for(world_size), layout.expert_data_for(world_size)
    grid = HyperCommGrid(
        [layout.tensor, layout.context, data, layout.pipeline], ["tensor", "context", "data", "pipeline"]
    )
    grid.register_view(
        "expert",
        [layout.expert_tensor, layout.expert, edp, layout.pipeline],
        ["expert_tensor", "expert", "expert_data", "pipeline"],
        shared_dims=["pipeline"],
    )
    dense = [["tensor"], ["pipeline"], ["context"], ["data"], ["context", "data"], ["tensor", "pipeline"]]
    experts = [["expert"], ["expert_tensor"], ["expert_data"], ["expert_tensor", "expert", "pipeline"]]
    return [
        (
            sorted(layout.groups(world_size, axes)),
            sorted(sorted(group) for group in grid.get_rank_enum(axes, view=view)),
        )
        for view, over in ((None, dense), ("expert", experts))
        for axes in over
    ]


def enumerations_of_several_layouts():
    return [
        enumerations(Layout(tensor=2, pipeline=2, context=2), 16),
        enumerations(Layout(tensor=4, expert=4, expert_tensor=2), 16),
        enumerations(Layout(tensor=2, pipeline=2, expert=4), 24),
    ]


def test_groups_are_those_of_megatrons_grid(ranks):
    (layouts,) = ranks.run(1, enumerations_of_several_layouts)
    for layout in layouts:
        for ours, megatrons in layout:
            assert ours == megatrons


def fields_of_process_groups():
    context = ParallelContext.build(Layout(pipeline=2), "cpu")
    groups = context.process_groups
    return {
        field.name: vars(groups)[field.name] and dist.get_process_group_ranks(vars(groups)[field.name])
        for field in fields(groups)
        if field.name in vars(groups)
    }, {field.name for field in fields(groups)}


def test_every_field_of_megatrons_collection_is_set(ranks):
    """Trap 2: a field left unset reads None, which megatron takes for "skip" or for the whole world."""
    for values, names in ranks.run(4, fields_of_process_groups):
        assert set(values) == names
        unused = {"hcp", "dp_cp_ag", "expt_dp_ag", "inter_dist_opt"}
        assert {name for name, ranks in values.items() if ranks is None} == unused


def test_the_embedding_group_is_first_and_last_stage(ranks):
    """Trap 2: without it tied embeddings over pipeline ranks drift apart."""
    values = [values for values, _ in ranks.run(4, fields_of_process_groups)]
    assert [value["embd"] for value in values] == [[0, 2], [1, 3], [0, 2], [1, 3]]
    assert [value["pos_embd"] for value in values] == [[0], [1], [2], [3]]


def sums_over_axes(layout):
    context = ParallelContext.build(layout, "cpu")
    sums = {}
    for name in ("tensor", "pipeline", "data", "expert_data"):
        axis = getattr(context, name)
        value = torch.tensor(dist.get_rank())
        dist.all_reduce(value, group=axis.group)
        sums[name] = (axis.rank, axis.size, int(value))
    return sums


def test_an_axis_reduces_over_its_own_ranks(ranks):
    results = ranks.run(4, sums_over_axes, Layout(tensor=2))
    assert [result["tensor"] for result in results] == [(0, 2, 1), (1, 2, 1), (0, 2, 5), (1, 2, 5)]
    assert [result["data"] for result in results] == [(0, 2, 2), (0, 2, 4), (1, 2, 2), (1, 2, 4)]
    assert [result["pipeline"] for result in results] == [(0, 1, rank) for rank in range(4)]


def layout_error():
    try:
        ParallelContext.build(Layout(tensor=3), "cpu")
    except ConfigError as error:
        return str(error)


def test_a_layout_that_does_not_fit_the_world_is_refused(ranks):
    assert "does not divide 2 ranks" in ranks.run(2, layout_error)[0]


def replicas():
    context = ParallelContext.build(Layout(tensor=4), "cpu")
    axis = context.tensor_replicas(2)
    return axis.rank, dist.get_process_group_ranks(axis.group)


def test_tensor_replicas_are_neighbours(ranks):
    assert ranks.run(4, replicas) == [(0, [0, 1]), (1, [0, 1]), (0, [2, 3]), (1, [2, 3])]


def component():
    context = ParallelContext.build(Layout(tensor=2), "cpu", first_rank=2, world_size=2)
    return context.rank, context.tensor.size


def test_a_component_may_have_part_of_the_ranks(ranks):
    assert ranks.run(4, component) == [(-2, 1), (-1, 1), (0, 2), (1, 2)]
