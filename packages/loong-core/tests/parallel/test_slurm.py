"""Ranks that srun starts find each other by SLURM's variables alone."""

import os
import socket
import subprocess
import sys

import pytest

from loong_core.errors import UserError
from loong_core.parallel.ranks import RankPlace
from loong_core.parallel.slurm import first_host, tasks_per_node, torchrun_variables

STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "gpu[03-05]",
    "SLURM_NODEID": "2",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
}


def test_a_task_of_a_step_knows_its_place():
    assert RankPlace.from_env(STEP) == RankPlace(4, 5, 0, 1, started=True)
    first = STEP | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1", "SLURM_NODEID": "0"}
    assert RankPlace.from_env(first) == RankPlace(1, 5, 1, 2, started=True)


def test_all_tasks_of_a_step_meet_at_one_place_and_another_step_elsewhere():
    places = [torchrun_variables(STEP | {"SLURM_PROCID": str(rank)}) for rank in range(5)]
    assert {place["MASTER_ADDR"] for place in places} == {"gpu03"}
    (port,) = {place["MASTER_PORT"] for place in places}
    assert torchrun_variables(STEP | {"SLURM_STEP_ID": "1"})["MASTER_PORT"] != port


def test_an_address_that_is_given_is_kept():
    place = torchrun_variables(STEP | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"})
    assert (place["MASTER_ADDR"], place["MASTER_PORT"]) == ("10.0.0.1", "1234")


def test_torchruns_variables_win():
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}
    assert RankPlace.from_env(STEP | torchrun).world_size == 2


@pytest.mark.parametrize(
    "environ",
    [
        {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"},  # the batch script's own shell
        STEP | {"SLURM_STEP_NUM_TASKS": "1"},  # a step of one task may start ranks by --nproc
    ],
)
def test_a_process_that_is_no_task_of_several_is_no_rank(environ):
    assert RankPlace.from_env(environ) == RankPlace()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"SLURM_LOCALID": None}, "SLURM_STEP_ID is set, but SLURM_LOCALID is not; start ranks with srun"),
        ({"SLURM_PROCID": "x"}, "RANK='x' is not a number"),
        ({"SLURM_STEP_TASKS_PER_NODE": "two"}, "SLURM_STEP_TASKS_PER_NODE='two' cannot be read"),
        ({"SLURM_STEP_NODELIST": ""}, "set MASTER_ADDR"),
    ],
)
def test_a_step_that_cannot_be_read_is_told_by_the_variable(change, words):
    environ = {name: value for name, value in (STEP | change).items() if value is not None}
    with pytest.raises(UserError, match=words.replace("(", r"\(")):
        RankPlace.from_env(environ)


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("a", "a"), ("a,b", "a"), ("gpu[03-05,9],login", "gpu03"), ("n[7]-ib", "n7-ib"), ("r1n[01,03]", "r1n01")],
)
def test_the_first_host_of_a_list(hosts, first):
    assert first_host(hosts) == first


def test_tasks_of_each_node():
    assert tasks_per_node("2(x3),1") == [2, 2, 2, 1]


JOINING = """
import torch, torch.distributed as dist
from loong_core.device.cpu import CpuDevice
from loong_core.parallel.ranks import initialise_from_env, leave
place, device = initialise_from_env(CpuDevice())
total = torch.tensor(place.rank + 1)
dist.all_reduce(total)
print(place.rank, place.world_size, int(total), flush=True)
leave()
"""


def test_tasks_join_each_other():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    step = STEP | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_STEP_NODELIST": "localhost"}
    tasks = [
        subprocess.Popen(
            [sys.executable, "-c", JOINING],
            env=os.environ | step | {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "MASTER_PORT": port},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    assert [task.communicate()[0].split() for task in tasks] == [["0", "2", "3"], ["1", "2", "3"]]
