"""Searching layouts: what fits, the fastest first; and what is nearest when nothing does."""

import subprocess
import sys

import pytest
from plan_toys import EIGHT_BILLION, THIRTY_BILLION, cluster, search, work

from loong_core.nn.parts import ALL_BLOCKS, NOTHING
from loong_core.plan.nearest import Request, impossible
from loong_core.plan.rates import measured_rates
from loong_core.plan.search import Freedom


def request(workload, on, freedom=None):
    serves = search(workload, on).serves
    return Request(workload, on, freedom or Freedom(), serves, measured_rates())


def told(asked):
    found = asked.search()
    assert not found.fitting
    return impossible(asked, found)


@pytest.fixture(scope="module")
def found():
    return search(work(THIRTY_BILLION, global_batch_size=256), cluster(64)).run(Freedom())


def test_what_is_found_fits_and_the_fastest_is_first(found):
    assert len(found.fitting) > 50
    assert all(each.needed <= cluster(64).accelerator.memory for each in found.fitting)
    seconds = [each.seconds for each in found.fitting]
    assert seconds == sorted(seconds)


def test_each_layout_is_there_once_with_its_best_microbatch(found):
    degrees = [each.degrees for each in found.fitting]
    assert len(degrees) == len(set(degrees))
    own = search(work(THIRTY_BILLION, global_batch_size=256), cluster(64))
    best = found.fitting[0]
    for size in (1, 2, 4):
        other = own.evaluate(best.layout, best.work.with_micro_batch(size))
        assert other.seconds >= best.seconds


def test_batches_divide_on_what_is_found(found):
    for each in found.fitting:
        microbatches = each.work.microbatches(each.layout.data_for(64))
        assert microbatches > 0
        assert each.layout.virtual_pipeline == 1 or microbatches % each.layout.pipeline == 0


def test_fixed_degrees_and_microbatches_stay():
    found = search(work(THIRTY_BILLION), cluster(16)).run(Freedom({"pipeline": 2, "expert_tensor": 1}, (2,)))
    assert found.fitting
    assert {each.layout.pipeline for each in found.fitting} == {2}
    assert {each.layout.expert_tensor for each in found.fitting} == {1}
    assert {each.work.micro_batch_size for each in found.fitting} == {2}


def test_long_sequences_are_shared_by_context_ranks():
    found = search(work(EIGHT_BILLION, sequence_length=131_072, global_batch_size=8), cluster(64)).run(Freedom())
    assert {each.layout.context for each in found.fitting} >= {4, 8}
    short = search(work(EIGHT_BILLION), cluster(64)).run(Freedom())
    assert {each.layout.context for each in short.fitting} == {1}


def test_fsdp_shares_among_data_and_context_ranks_only():
    found = search(work(THIRTY_BILLION, engine="fsdp"), cluster(16)).run(Freedom())
    assert found.fitting
    assert {each.degrees for each in found.fitting} == {(1, 1, 1, 1, 1, 1)}


def test_recomputation_is_planned_only_where_memory_is_short():
    found = search(work(EIGHT_BILLION, global_batch_size=8), cluster(8)).run(Freedom(recompute=(NOTHING, ALL_BLOCKS)))
    by_degrees = {(each.layout.tensor, each.layout.pipeline): each.work for each in found.fitting}
    assert by_degrees[8, 1].recompute == NOTHING
    whole = search(work(EIGHT_BILLION, sequence_length=32_768, global_batch_size=8), cluster(2))
    assert not whole.run(Freedom({"tensor": 2})).fitting
    (shared,) = whole.run(Freedom({"tensor": 2, "context": 1}, (1,), (NOTHING, ALL_BLOCKS))).fitting
    assert shared.work.recompute == ALL_BLOCKS


def test_thousands_of_accelerators_are_planned_at_once():
    found = search(work(THIRTY_BILLION, global_batch_size=8192), cluster(8192)).run(Freedom())
    assert len(found.fitting) > 50


def test_a_batch_that_does_not_divide_is_told_with_the_nearest_that_does():
    words = told(request(work(THIRTY_BILLION, global_batch_size=100), cluster(64), Freedom({"pipeline": 1}, (3,))))
    assert "train.global_batch_size 100 does not divide into microbatches of 3" in words
    assert "the nearest that does is 96" in words


def test_a_degree_that_does_not_serve_is_told_with_its_fault():
    words = told(request(work(THIRTY_BILLION), cluster(64), Freedom({"tensor": 3})))
    assert "no layout of 64 h200 (8 machines of 8) serves this model" in words
    assert "layout.tensor: 3 does not divide the model's 32 attention heads" in words or "does not divide 64" in words


def test_a_model_that_is_too_large_names_the_fewest_accelerators_that_hold_it():
    words = told(request(work(THIRTY_BILLION), cluster(2)))
    assert "no layout of 2 h200 holds this run: the least that a device must have is" in words
    assert "  - 8 h200: layout." in words
    assert "optimizer" in words


def test_a_microbatch_that_is_too_large_names_the_largest_that_fits():
    asked = request(work(EIGHT_BILLION, global_batch_size=512), cluster(8), Freedom({}, (64,)))
    assert "the largest microbatch that fits" in told(asked)


def test_a_run_that_needs_another_layout_on_more_accelerators_names_both():
    workload = work(EIGHT_BILLION, sequence_length=2**20, global_batch_size=8)
    words = told(request(workload, cluster(8), Freedom({"context": 1, "tensor": 1, "pipeline": 1})))
    assert " h200 (" in words.split("nearest:")[1]
    assert "layout.context=" in words


def test_a_sequence_that_no_cluster_holds_is_shortened():
    asked = request(work(EIGHT_BILLION, sequence_length=2**30, global_batch_size=8), cluster(8))
    assert "  - data.sequence_length=" in told(asked)


def test_planning_imports_no_torch():
    code = "import sys, loong_core.plan.nearest; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
