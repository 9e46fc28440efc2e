import pytest

from loong_core.parallel.layout import Layout


def wheres(faults):
    return [fault.where for fault in faults]


def test_data_ranks_are_what_the_model_leaves():
    assert Layout(tensor=2, pipeline=2, context=2).data_for(32) == 4


def test_degrees_that_do_not_divide_the_ranks_are_named_with_their_product():
    faults = Layout(tensor=3).faults(2, heads=4, kv_heads=2)
    assert [str(fault) for fault in faults] == [
        "layout: tensor=3 x pipeline=1 x context=1 = 3 does not divide 2 ranks "
        "(start a multiple of 3 ranks or set layout.tensor=2)",
        "layout.tensor: 3 does not divide the model's 4 attention heads (nearest that does is 2)",
    ]


def test_a_layout_that_fits_has_no_faults():
    layout = Layout(tensor=4, pipeline=2, virtual_pipeline=2, context=2, expert=4, expert_tensor=2)
    assert layout.faults(32, heads=32, kv_heads=2, layers=12, experts=8) == []


def test_key_value_heads_fewer_than_tensor_ranks_are_no_fault():
    assert Layout(tensor=4).faults(4, heads=8, kv_heads=2) == []


def test_key_value_heads_that_cannot_be_shared_nor_copied_are_a_fault():
    assert "3 key-value heads" in str(Layout(tensor=2).faults(2, heads=6, kv_heads=3)[0])


@pytest.mark.parametrize(
    ("layout", "where", "what"),
    [
        (Layout(tensor=0), "layout.tensor", "is 0"),
        (Layout(replicate=3), "layout.replicate", "3 does not divide data x context = 8"),
        (Layout(shard=4, replicate=4), "layout.shard", "is not data x context = 8"),
        (Layout(virtual_pipeline=2), "layout.virtual_pipeline", "layout.pipeline is 1"),
        (Layout(pipeline=8), "layout.pipeline", "8 stages for 6 layers"),
        (Layout(expert=4), "layout.expert", "4 does not divide the model's 6 experts"),
        (Layout(expert=3), "layout.expert", "does not divide the 8 ranks of a pipeline stage"),
        (Layout(context=4, ulysses=3), "layout.ulysses", "3 does not divide layout.context=4"),
        (Layout(tensor=2, context=4, ulysses=8), "layout.ulysses", "8 does not divide layout.context=4"),
        (Layout(pipeline=4, pipeline_layers=[2, 2, 2]), "layout.pipeline_layers", "[2, 2, 2] has 3 numbers for"),
        (Layout(pipeline=4, pipeline_layers=[3, 0, 2, 1]), "layout.pipeline_layers", "leaves a stage without layers"),
        (Layout(pipeline=2, pipeline_layers=[2, 3]), "layout.pipeline_layers", "adds up to 5, the model has 6 layers"),
    ],
)
def test_each_fault_names_its_degree_and_the_numbers(layout, where, what):
    (fault,) = layout.faults(8, heads=8, kv_heads=8, layers=6, experts=6)
    assert fault.where == where
    assert what in fault.what


def test_heads_that_the_exchanging_ranks_cannot_share_are_a_fault_with_the_degrees_that_fit():
    (fault,) = Layout(tensor=2, context=4, ulysses=4).faults(8, heads=12, kv_heads=2)
    assert "4 does not divide the 6 attention heads of a tensor rank" in fault.what
    assert fault.fix == "set layout.ulysses=2: 2 ranks exchange heads, 2 form a ring"
    assert Layout(tensor=2, context=4, ulysses=2).faults(8, heads=12, kv_heads=2) == []


def test_all_faults_are_found_together():
    layout = Layout(pipeline=4, virtual_pipeline=4, expert=16)
    assert wheres(layout.faults(8, layers=6, experts=6)) == ["layout.pipeline", "layout.expert", "layout.expert"]


def test_shard_ranks_follow_from_the_copies():
    assert Layout(context=2, replicate=2).shard_for(16) == 8


def test_virtual_stages_are_dealt_round_the_pipeline_ranks():
    assert Layout(pipeline=2, virtual_pipeline=2).stage_layers(8) == [
        [range(0, 2), range(4, 6)],
        [range(2, 4), range(6, 8)],
    ]


def test_the_middle_stages_take_the_layers_that_are_over():
    sizes = [len(stage) for (stage,) in Layout(pipeline=4).stage_layers(10)]
    assert sizes == [2, 3, 3, 2]


@pytest.mark.parametrize("layers", range(6, 19))
def test_every_layer_is_in_one_stage(layers):
    stages = [stage for rank in Layout(pipeline=3, virtual_pipeline=2).stage_layers(layers) for stage in rank]
    assert sorted(layer for stage in stages for layer in stage) == list(range(layers))


def test_layers_given_by_hand_are_dealt_round_the_ranks_too():
    layout = Layout(pipeline=2, virtual_pipeline=2, pipeline_layers=[1, 3, 2, 0])
    assert layout.faults(2, layers=6) == []
    assert layout.stage_layers(6) == [[range(0, 1), range(4, 6)], [range(1, 4), range(6, 6)]]


def test_ranks_that_exchange_heads_are_neighbours_and_the_ring_goes_round_their_groups():
    layout = Layout(tensor=2, context=4, ulysses=2)
    assert layout.groups(8, ["context"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert layout.groups(8, ["ulysses"]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups(8, ["ring"]) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_the_ranks_of_an_axis_are_those_that_differ_only_in_it():
    layout = Layout(tensor=2, pipeline=2)
    assert layout.groups(8, ["tensor"]) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups(8, ["data"]) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert layout.groups(8, ["tensor", "pipeline"]) == [[0, 1, 4, 5], [2, 3, 6, 7]]


def test_experts_are_a_second_view_of_the_same_ranks():
    """Trap 7: an expert axis beside the data axis would leave data groups of one member."""
    layout = Layout(expert=2)
    assert layout.groups(8, ["data"]) == [list(range(8))]
    assert layout.groups(8, ["expert"]) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert layout.groups(8, ["expert_data"]) == [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_a_component_can_start_at_any_rank():
    assert Layout(tensor=2).groups(4, ["data"], first_rank=4) == [[4, 6], [5, 7]]
