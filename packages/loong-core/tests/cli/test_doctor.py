"""`loong doctor` tells what is installed, what is broken, and how fast this machine is."""

import os
import subprocess
import sys
from importlib.metadata import version

import pytest
import torch
import torch.distributed as dist

from loong_core.cli import shared_folder
from loong_core.cli.shared_folder import nearest_existing, ranks_that_miss
from loong_core.device.cpu import CpuDevice
from loong_core.device.measure import time_all_reduce, time_copies
from loong_core.parallel.pool import RankError


@pytest.fixture
def plain(declare, monkeypatch):
    """Nothing but the cpu, and no families."""
    declare("loong.devices", quantum="no_such_package.device:Quantum")
    declare("loong.families", phoenix="no_such_package:PHOENIX")
    monkeypatch.setenv("LOONG_DEVICE", "cpu")


def test_one_machine_with_one_rank_is_reported(loong, plain, tmp_path):
    answer = loong("doctor", "--output", tmp_path / "runs" / "mine")
    assert answer.status == 0, answer.err
    for text in (
        f"loong-core {version('loong-core')}",
        f"torch {torch.__version__.partition('+')[0]}",
        "cpu available built in",
        "a run gets: cpu, chosen by LOONG_DEVICE",
        "copy on cpu, 64 MiB:",
        f"GiB free on the file system of {tmp_path}",
        "one rank: whether machines share the folder shows when",
    ):
        assert text in answer.flat
    assert "all-reduce over" not in answer.flat
    assert list(tmp_path.iterdir()) == []


def test_plug_ins_that_fail_are_named_with_their_errors(loong, plain):
    flat = loong("doctor").flat
    assert "loong.devices quantum failed" in flat
    assert "loong.families phoenix failed" in flat
    assert flat.count("ModuleNotFoundError: No module named 'no_such_package'") >= 3


def test_optional_packages_that_are_missing_say_what_they_are_for(loong, plain):
    assert "transformer-engine not installed fp8 and fused layers" in loong("doctor").flat


def test_a_device_that_cannot_be_had_ends_the_report_with_status_2(loong, plain):
    answer = loong("doctor", "--device", "quantum")
    assert answer.status == 2
    assert f"loong-core {version('loong-core')}" in answer.flat
    assert "device 'quantum'" in answer.err


def test_several_ranks_time_an_all_reduce_and_share_a_folder(tmp_path):
    command = [sys.executable, "-m", "loong_core.cli.main", "doctor", "--nproc", "2", "--device", "cpu"]
    done = subprocess.run(
        [*command, "--output", str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "all-reduce over 2 ranks, 16 MiB:" in done.stdout
    assert "all 2 ranks share it" in done.stdout
    assert done.stdout.count("a run gets: cpu") == 1


def test_a_copy_takes_time_and_has_a_rate():
    (timing,) = time_copies(CpuDevice(), torch.device("cpu"))
    assert timing.rate == pytest.approx(timing.size / timing.seconds)
    assert str(timing).startswith("copy on cpu, 64 MiB: ")


def all_reduce_on_a_rank():
    return time_all_reduce(CpuDevice(), torch.device("cpu"))


def missing_ranks(folders):
    shared_folder._PATIENCE_SECONDS = 0.3
    return ranks_that_miss(folders[dist.get_rank()])


def test_the_bus_rate_of_an_all_reduce_counts_what_each_link_carries(ranks):
    timing = ranks.run(2, all_reduce_on_a_rank)[0]
    assert timing.rate == pytest.approx(timing.size / timing.seconds)


def test_ranks_that_do_not_share_a_folder_are_named_on_every_rank(ranks, tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    answers = ranks.run(2, missing_ranks, [here, there])
    assert answers[0] == answers[1]
    assert len(answers[0]) == 1
    assert answers[0][0].startswith("rank 1 on ")
    assert list(here.iterdir()) == []


def test_ranks_that_share_a_folder_that_is_still_to_be_made_are_not_named(ranks, tmp_path):
    assert ranks.run(2, missing_ranks, [tmp_path / "runs" / "mine"] * 2) == [[], []]


def test_a_folder_that_cannot_be_written_is_an_error_on_every_rank(ranks):
    with pytest.raises(RankError, match=r"/proc: ") as failed:
        ranks.run(2, missing_ranks, [nearest_existing(shared_folder.Path("/proc/runs"))] * 2)
    assert str(failed.value).count("OSError: /proc: ") == 2
