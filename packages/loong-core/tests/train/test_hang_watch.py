"""A run that hangs ends within the timeout, and the rank that holds it up is named with its step and its stack."""

import json
import os
import signal
from dataclasses import asdict
from threading import Event, Thread

import pytest
from forked_ranks import run_forked
from toy_run import run_toy

from loong_core.errors import HangError
from loong_core.parallel.crew import Crew
from loong_core.train.hang_watch import HangWatch, Pulse, judged

HUNG = HangError.exit_status


def wait_for_ever(logs):
    signal.pause()


def stop_itself(logs):
    """After a pulse of this step has been given."""
    pause = Event()
    while not any('"step": 5' in file.read_text() for file in logs.glob(f"pulse-*/rank-{Crew().rank}.json")):
        pause.wait(0.01)
    os.kill(os.getpid(), signal.SIGSTOP)


def train_with(output, event, victim):
    """The toy on this rank; at the data of step 5 something happens on one rank."""
    events = {5: lambda: event(output / "logs") if Crew().rank == victim else None}
    run_toy(output, "train.hang_timeout=1.0", events=events)


@pytest.fixture
def hang(tmp_path):
    def run(event, victim):
        statuses = run_forked(2, train_with, tmp_path / "run", event, victim, log_dir=tmp_path)
        printed = [(tmp_path / f"out-{rank}.txt").read_text() for rank in range(2)]
        logs = [(tmp_path / "run" / "logs" / f"rank-{rank}.log").read_text() for rank in range(2)]
        return statuses, printed, logs

    return run


def test_a_rank_that_hangs_is_named_with_its_last_step_and_stack_and_all_ranks_end(hang, tmp_path):
    statuses, printed, logs = hang(wait_for_ever, 1)
    assert statuses == [HUNG, HUNG]
    for said in (printed[0], logs[0], logs[1]):
        assert "error: the run hangs: no rank has got on for 1 seconds" in said
        assert "rank 1 (" in said
        assert "does not get on, and waits for no other; it was in step 5, reading data, at" in said
        assert "in wait_for_ever" in said
        assert "rank 0: step 5, " in said
    assert "the run hangs" not in printed[1]
    assert not list((tmp_path / "run" / "logs").glob("*.tmp"))


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stopped_rank_is_named_by_the_others(hang, victim):
    statuses, printed, _ = hang(stop_itself, victim)
    assert statuses[1 - victim] == HUNG
    assert statuses[victim] == -signal.SIGKILL  # it cannot end itself: whoever started it does
    said = printed[1 - victim]
    assert f"rank {victim} (" in said
    assert "does not answer: it is stopped, or its machine is gone; it was in step 5, reading data, at" in said
    assert "in stop_itself" in said


def pulse(rank, beat=9, marks=40, step=5, doing="computing", stack="", waits=True):
    return Pulse(rank, "host", 100 + rank, beat, marks, step, doing, stack, waits)


def test_where_all_wait_the_rank_that_has_begun_least_is_to_blame():
    first = {rank: pulse(rank) for rank in range(4)}
    last = {rank: pulse(rank, beat=12, marks=37 if rank == 2 else 40) for rank in range(4)}
    verdict = judged(first, last, 4, 60.0)
    assert "rank 2 (host, process 102) is the furthest behind; it was in step 5, computing" in verdict.text
    assert "rank 0, 1, 3: step 5, computing" in verdict.text
    assert verdict.speaker == 0


def test_a_rank_that_never_gave_a_pulse_is_named():
    first = {0: pulse(0), 1: pulse(1)}
    last = {0: pulse(0, beat=12), 1: pulse(1, beat=12)}
    assert "rank 2 has never given a sign" in judged(first, last, 3, 60.0).text


def test_a_rank_is_waited_for_as_long_as_another_gets_on(tmp_path, monkeypatch):
    """Rank 0 waits; the pulses of rank 1 show new marks for many timeouts, then no more."""
    monkeypatch.setattr(Crew, "size", 2)
    ended, said = Event(), []
    watch = HangWatch(tmp_path, 0.8, say=said.append, end=lambda status: (said.append(status), ended.set()))
    monkeypatch.setattr(Crew, "from_first", lambda self, value: value)
    with watch:
        (folder,) = tmp_path.glob("pulse-*")
        halt, marks = Event(), 0

        def get_on(first, last):
            nonlocal marks
            for marks in range(first, last):
                (folder / "next").write_text(json.dumps(asdict(pulse(1, beat=marks, marks=marks))))
                (folder / "next").replace(folder / "rank-1.json")  # never seen half-written, as ranks do it
                halt.wait(0.02)

        worker = Thread(target=get_on, args=(1, 150))
        worker.start()
        worker.join()
        assert not ended.is_set()
        assert ended.wait(20)
    assert said[-1] == HUNG
    assert "rank 1 (host, process 101) does not answer" in said[0]


def test_without_a_timeout_nothing_is_watched(tmp_path):
    with HangWatch(tmp_path, None) as watch:
        watch.mark(1, "anything")
    assert list(tmp_path.iterdir()) == []
