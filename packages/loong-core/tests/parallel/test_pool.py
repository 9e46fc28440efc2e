import os

import pytest
import torch
import torch.distributed as dist

from loong_core.parallel.pool import RankError, RankPool


def total(value):
    tensor = torch.tensor(value + dist.get_rank())
    dist.all_reduce(tensor)
    return int(tensor), os.getpid(), os.environ["WORLD_SIZE"]


def test_results_come_in_rank_order_from_processes_that_stay(ranks):
    first, second = ranks.run(2, total, 10), ranks.run(2, total, 20)
    assert [answer[0] for answer in first + second] == [21, 21, 41, 41]
    assert [answer[1] for answer in first] == [answer[1] for answer in second]


def test_worlds_of_several_sizes_follow_each_other(ranks):
    sizes = [[answer[2] for answer in ranks.run(size, total, 0)] for size in (2, 1, 2)]
    assert sizes == [["2", "2"], ["1"], ["2", "2"]]


def fail_on(rank):
    if dist.get_rank() == rank:
        raise ValueError("a reason")
    return dist.get_rank()


def test_a_failure_shows_the_rank_and_its_traceback(ranks):
    with pytest.raises(RankError, match=r"(?s)rank 1 of 2: .*in fail_on.*ValueError: a reason"):
        ranks.run(2, fail_on, 1)


def leave_alone(rank):
    if dist.get_rank() == rank:
        raise ValueError("a reason")
    dist.barrier()


def test_a_rank_that_waits_for_a_failed_one_does_not_hold_up_the_pool(ranks):
    with pytest.raises(RankError, match="rank 0 of 2"):
        ranks.run(2, leave_alone, 0)
    assert [answer[0] for answer in ranks.run(2, total, 0)] == [1, 1]


def end(status):
    os._exit(status)


def test_a_rank_that_ends_is_reported_with_its_status():
    with RankPool() as pool, pytest.raises(RankError, match="rank 0 of 1: its process ended with 7"):
        pool.run(1, end, 7)


def threads_after_training():
    from core_toys.training import trained

    from loong_core.engine.settings import EngineSettings
    from loong_core.parallel.layout import Layout

    trained(Layout(), EngineSettings(), 1)
    return len(os.listdir("/proc/self/task"))


def test_what_an_engine_leaves_behind_does_not_pile_up_in_the_ranks(ranks):
    counts = [ranks.run(1, threads_after_training)[0] for _ in range(3)]
    assert counts[1] == counts[2]
