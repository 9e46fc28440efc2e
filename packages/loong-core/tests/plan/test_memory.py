"""Weights, gradients and optimizer of a rank, and the microbatches on their way."""

from dataclasses import replace

import pytest
import torch
from plan_toys import EIGHT_BILLION, MIXTURE, THIRTY_BILLION, cluster, with_layers, work

from loong_core.nn import four_bit
from loong_core.nn.decoder import Decoder
from loong_core.nn.parts import ALL_BLOCKS, NOTHING, Parts
from loong_core.parallel.context import Axis, ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.plan.kept import names_layers
from loong_core.plan.memory import MemoryModel, in_flight, pipeline_stages
from loong_core.plan.workload import FOUR_BIT, Share


def memory(workload, layout, size):
    model = MemoryModel(cluster(size), 0.0)
    return model.worst(workload, layout, pipeline_stages(workload.model, layout))


@pytest.mark.parametrize("layout", [Layout(), Layout(tensor=2), Layout(tensor=2, expert=4), Layout(expert_tensor=2)])
def test_a_rank_has_the_parameters_that_its_decoder_has(layout):
    context = ParallelContext(
        layout,
        torch.device("meta"),
        tensor=Axis(None, 0, layout.tensor),
        expert=Axis(None, 0, layout.expert),
        expert_tensor=Axis(None, 0, layout.expert_tensor),
    )
    built = sum(parameter.numel() for parameter in Decoder(MIXTURE, context).parameters())
    (stage,) = pipeline_stages(MIXTURE, layout)
    assert stage.parameters(MIXTURE, Share.of(work(MIXTURE), layout)).all == built


def test_a_parameter_takes_eighteen_bytes_in_bf16_and_sixteen_in_fp32_on_one_rank():
    parameters = EIGHT_BILLION.parameter_count()
    for precision, each in (("bf16", 18), ("fp32", 16)):
        found = memory(work(EIGHT_BILLION, precision=precision), Layout(), 1)
        assert found.weights + found.gradients + found.optimizer == parameters * each


def test_data_ranks_share_the_optimizer_and_nothing_else():
    one, eight = (memory(work(EIGHT_BILLION), Layout(), size) for size in (1, 8))
    assert eight.optimizer == one.optimizer / 8
    assert replace(eight, optimizer=one.optimizer) == one


def test_experts_optimizer_is_shared_by_the_ranks_that_hold_the_same_experts():
    whole, divided = (memory(work(THIRTY_BILLION), Layout(expert=expert), 8) for expert in (1, 8))
    assert divided.optimizer == pytest.approx(whole.optimizer)  # eight ranks of all, or one of an eighth
    assert divided.weights < 0.2 * whole.weights


def test_fsdp_ranks_share_weights_and_gradients_too():
    one, eight = (memory(work(EIGHT_BILLION, engine="fsdp"), Layout(), size) for size in (1, 8))
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(eight, part) == getattr(one, part) / 8


@pytest.mark.parametrize(
    ("layout", "rank", "microbatches", "ahead"),
    [
        (Layout(pipeline=4), 0, 16, 4),
        (Layout(pipeline=4), 3, 16, 1),
        (Layout(pipeline=4), 0, 2, 2),
        (Layout(pipeline=4, virtual_pipeline=2), 0, 16, (6 + 4 + 1) / 2),
        (Layout(pipeline=4, virtual_pipeline=2), 3, 16, (0 + 4 + 1) / 2),
    ],
)
def test_pipeline_ranks_hold_as_many_microbatches_as_the_schedule_runs_ahead(layout, rank, microbatches, ahead):
    assert in_flight(layout, rank, microbatches) == ahead


def test_the_first_pipeline_rank_needs_most():
    layout = Layout(pipeline=6)
    model = MemoryModel(cluster(6, per_node=6), 0.0)
    peaks = [model.rank(work(EIGHT_BILLION), layout, stage).peak for stage in pipeline_stages(EIGHT_BILLION, layout)]
    assert max(peaks) == peaks[0]


def test_recomputation_keeps_one_input_a_block():
    kept = work(EIGHT_BILLION)
    added = [
        memory(replace(workload, model=with_layers(EIGHT_BILLION, 20)), Layout(), 1).activations
        - memory(replace(workload, model=with_layers(EIGHT_BILLION, 10)), Layout(), 1).activations
        for workload in (kept, replace(kept, recompute=ALL_BLOCKS))
    ]
    assert added[1] == 10 * 4096 * 4096 * 2
    assert added[0] > 10 * added[1]


def activations(**changes):
    return memory(work(EIGHT_BILLION, **changes), Layout(), 1).activations


def test_recomputed_parts_are_counted_block_by_block():
    none, some, all_ = (activations(recompute=Parts(blocks=blocks)) for blocks in (0, 9, None))
    assert none - some == pytest.approx((none - all_) / 4)
    attention, feed_forward = (activations(recompute=Parts(modules=(part,))) for part in ("attention", "feed_forward"))
    assert all_ < activations(recompute=Parts(modules=("attention", "feed_forward"))) < min(attention, feed_forward)
    ninth = activations(recompute=Parts(modules=("layers.*[05].feed_forward",)))  # 0, 5, 10, ... 35
    assert none - ninth == pytest.approx((none - feed_forward) * 8 / 36)


def test_blocks_of_the_first_pipeline_rank_alone_leave_the_others_needing_most():
    layout = Layout(pipeline=4, pipeline_layers=[9, 9, 9, 9])
    model = MemoryModel(cluster(4), 0.0)
    workload = work(EIGHT_BILLION, recompute=Parts(modules=("layers.[0-8]",)))
    stages = pipeline_stages(EIGHT_BILLION, layout, apart=names_layers(workload))
    first, second, *_ = (model.rank(workload, layout, stage).activations for stage in stages)
    assert len(stages) == 4
    assert first < 0.2 * second


def test_what_is_offloaded_is_on_the_device_for_two_blocks_at_a_time():
    model = replace(EIGHT_BILLION, vocab_size=1000)  # the logits of a large one come to more
    kept, moved = (memory(work(model, offload=parts), Layout(), 1) for parts in (NOTHING, ALL_BLOCKS))
    assert moved.temporary - kept.temporary == pytest.approx((kept.activations - moved.activations) / 36 * 2)


def test_frozen_parameters_have_neither_gradients_nor_optimizer():
    found = memory(work(EIGHT_BILLION, trained=0.0), Layout(), 1)
    assert (found.gradients, found.optimizer) == (0, 0)
    assert found.weights > 0


def test_a_device_needs_more_than_what_is_allocated():
    found = memory(work(EIGHT_BILLION), Layout(), 1)
    assert found.peak < found.needed(1) < found.needed(2)


def test_adapters_add_their_own_weights_and_leave_the_rest_without_gradient_and_optimizer():
    whole = memory(work(EIGHT_BILLION), Layout(), 2)
    adapters = memory(work(EIGHT_BILLION, trained=0.01, added=0.01), Layout(), 2)
    assert adapters.weights == pytest.approx(1.01 * whole.weights)
    assert adapters.gradients == pytest.approx(0.01 * whole.gradients)
    assert adapters.optimizer == pytest.approx(0.01 * whole.optimizer)
    assert adapters.activations == whole.activations


@pytest.mark.parametrize("engine", ["megatron", "fsdp"])
def test_blocks_in_4_bits_take_what_the_layers_take_and_room_to_write_a_matrix_out(engine):
    assert FOUR_BIT == four_bit.BYTES_PER_NUMBER
    plain = memory(work(EIGHT_BILLION, engine=engine, trained=0.01, added=0.01), Layout(), 1)
    rounded = memory(work(EIGHT_BILLION, engine=engine, trained=0.01, added=0.01, four_bit=True), Layout(), 1)
    tables = 2 * EIGHT_BILLION.vocab_size * EIGHT_BILLION.hidden_size
    blocks = EIGHT_BILLION.parameter_count() - tables - EIGHT_BILLION.hidden_size
    element = 4 if engine == "fsdp" else 2
    assert plain.weights - rounded.weights == pytest.approx(blocks * (element - FOUR_BIT))
    assert rounded.gradients == plain.gradients
    matrix = 2 * EIGHT_BILLION.hidden_size * 12_288 * 2
    if engine == "megatron":
        assert rounded.temporary - plain.temporary == matrix
    else:
        assert rounded.temporary < plain.temporary
