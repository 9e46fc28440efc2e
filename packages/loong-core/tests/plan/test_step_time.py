"""What a step takes, and how layouts and shapes move it."""

from dataclasses import replace

import pytest
from plan_toys import DENSE, EIGHT_BILLION, THIRTY_BILLION, cluster, search, with_layers, work

from loong_core.nn.parts import ALL_BLOCKS, NOTHING, Parts
from loong_core.parallel.layout import Layout
from loong_core.plan.block_time import KINDS
from loong_core.plan.devices import Cluster, Link
from loong_core.plan.memory import pipeline_stages
from loong_core.plan.rates import measured_rates
from loong_core.plan.step_time import StepClock


def step(workload, layout, on):
    return StepClock(on, measured_rates()).step(workload, layout, pipeline_stages(workload.model, layout))


def parts(workload, layout, on):
    return step(workload, layout, on).parts


def test_parts_are_named_and_add_up_to_the_step():
    found = step(work(THIRTY_BILLION), Layout(tensor=2, pipeline=2, expert=4), cluster(16))
    assert found.parts.keys() <= KINDS.keys()
    assert sum(found.parts.values()) == pytest.approx(found.seconds)
    assert sum(share for _, share in found.shares()) == pytest.approx(1)


def test_a_large_dense_step_runs_at_a_good_part_of_the_peak():
    workload = work(with_layers(EIGHT_BILLION, 8), sequence_length=8192, global_batch_size=8)
    seconds = step(workload, Layout(), cluster(1)).seconds
    reached = workload.flops_per_token * workload.step_tokens / seconds / cluster(1).accelerator.bf16
    assert 0.45 < reached < 0.8


def test_waiting_shrinks_with_microbatches_and_with_virtual_stages():
    model = with_layers(EIGHT_BILLION, 32)
    on = cluster(4)
    few, many = (
        parts(work(model, global_batch_size=size), Layout(pipeline=4), on)["bubble"] / size for size in (8, 64)
    )
    assert many < few / 4
    divided = parts(work(model), Layout(pipeline=4, virtual_pipeline=4), on)["bubble"]
    assert divided < parts(work(model), Layout(pipeline=4), on)["bubble"] / 3


def test_a_slow_network_between_machines_is_felt_by_layouts_that_cross_it():
    workload = work(THIRTY_BILLION, global_batch_size=256)
    fast = cluster(64)
    slow = Cluster(replace(fast.accelerator, between=Link(5e9, 1e-4)), 64, 8)
    crossing, inside = Layout(expert=64), Layout(expert=8, pipeline=8)
    assert parts(workload, crossing, slow)["exchange"] > 5 * parts(workload, crossing, fast)["exchange"]
    assert parts(workload, inside, slow)["exchange"] == parts(workload, inside, fast)["exchange"]


def test_tensor_ranks_divide_products_and_pay_for_talking():
    alone, shared = (parts(work(EIGHT_BILLION), Layout(tensor=degree), cluster(degree)) for degree in (1, 8))
    assert alone["products"] / 8 < shared["products"] < alone["products"] / 6  # smaller products are less efficient
    assert shared["tensor"] > 0
    assert alone.get("tensor", 0) == 0


def test_context_ranks_divide_attention_whether_by_ring_or_by_exchange():
    workload = work(EIGHT_BILLION, sequence_length=131_072, global_batch_size=1)
    alone = parts(workload, Layout(), cluster(1))["attention"]
    for layout in (Layout(context=4), Layout(context=4, ulysses=4)):
        shared = parts(workload, layout, cluster(4))
        assert shared["attention"] == pytest.approx(alone / 4, rel=0.15)
        assert shared["context"] > 0


def test_a_tiny_model_takes_as_long_as_the_host_needs_to_launch_it():
    found = parts(work(DENSE, global_batch_size=4), Layout(), cluster(1))
    assert found["host"] > 0.8 * sum(found.values())


def test_recomputing_adds_a_forward_of_the_blocks():
    kept, again = (parts(work(EIGHT_BILLION, recompute=how), Layout(), cluster(1)) for how in (NOTHING, ALL_BLOCKS))
    assert again["products"] == pytest.approx(kept["products"] * 4 / 3, rel=0.02)
    assert again["head"] == kept["head"]


def test_more_data_ranks_take_longer_to_reduce_gradients_across_machines():
    near, far = (parts(work(EIGHT_BILLION), Layout(), cluster(size)) for size in (8, 64))
    assert 0 < near["data"] < far["data"]


def test_fsdp_hides_what_it_gathers_under_what_it_computes():
    long, short = (
        parts(work(EIGHT_BILLION, engine="fsdp", sequence_length=length), Layout(), cluster(64)).get("sharding", 0)
        for length in (32_768, 512)
    )
    assert long == 0
    assert short > 0


def test_what_two_searches_find_does_not_depend_on_what_they_remember():
    workload = work(THIRTY_BILLION)
    one = search(workload, cluster(8))
    first = one.evaluate(Layout(expert=8), workload)
    one.evaluate(Layout(expert=4), replace(workload, micro_batch_size=2))
    assert (
        one.evaluate(Layout(expert=8), workload)
        == first
        == search(workload, cluster(8)).evaluate(Layout(expert=8), workload)
    )


def test_a_recomputed_part_adds_its_own_forward():
    def added(*modules):
        recompute = Parts(modules=modules)
        kept, again = (parts(work(EIGHT_BILLION, recompute=how), Layout(), cluster(1)) for how in (NOTHING, recompute))
        return {kind: again[kind] - kept[kind] for kind in ("products", "attention")}

    attention, feed_forward, both = added("attention"), added("feed_forward"), added("attention", "feed_forward")
    assert attention["attention"] > 0
    assert feed_forward["attention"] == 0
    assert feed_forward["products"] > 2 * attention["products"] > 0
    assert both["products"] == pytest.approx(attention["products"] + feed_forward["products"])


def test_copies_to_the_host_are_felt_where_blocks_are_too_quick_to_hide_them():
    def felt(length, recompute):
        workload = work(EIGHT_BILLION, sequence_length=length, offload=ALL_BLOCKS, recompute=recompute)
        found = step(workload, Layout(), cluster(1))
        return found.parts.get("offload", 0.0) / found.seconds

    assert felt(4096, ALL_BLOCKS) == 0  # of a recomputed block only its input travels
    assert 0 < felt(131_072, NOTHING) < 0.7 * felt(4096, NOTHING)


def test_frozen_weights_spare_a_third_of_the_products_and_count_no_operations_for_them():
    model = with_layers(EIGHT_BILLION, 8)
    whole, adapters = work(model, global_batch_size=8), work(model, global_batch_size=8, trained=0.0)
    found = [parts(each, Layout(), cluster(1))["products"] for each in (whole, adapters)]
    assert found[1] == pytest.approx(2 / 3 * found[0], rel=0.02)
    spared = whole.flops_per_token - adapters.flops_per_token
    assert spared == 2 * model.matmul_parameters()


def test_matrices_in_4_bits_are_written_out_forward_and_backward():
    model = with_layers(EIGHT_BILLION, 8)
    plain = parts(work(model, global_batch_size=8, trained=0.0), Layout(), cluster(1))
    rounded = parts(work(model, global_batch_size=8, trained=0.0, four_bit=True), Layout(), cluster(1))
    assert rounded["elementwise"] > plain["elementwise"]
    assert rounded["products"] == plain["products"]
