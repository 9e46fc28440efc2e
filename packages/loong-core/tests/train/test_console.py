"""What a person sees of a run."""

import io

import pytest

from loong_core.train.console import RunConsole, duration

ROW = {
    "step": 10,
    "loss": 2.34567,
    "grad_norm": 0.51,
    "lr": 3e-4,
    "tokens_per_second": 12345.6,
    "mfu": 0.4567,
    "memory_bytes": 2**31,
    "step_seconds": 2.0,
    "data_seconds": 0.01,
}


def printed(*rows, every=1, first=9, last=40):
    stream, log = io.StringIO(), io.StringIO()
    console = RunConsole(every, log, stream=stream)
    console.begin(first, last)
    for row in rows:
        console.write(row)
    console.close()
    assert stream.getvalue() == log.getvalue()
    return stream.getvalue().splitlines()


def test_a_step_is_one_plain_line_where_there_is_no_terminal():
    assert printed(ROW) == [
        "step 10/40  loss 2.3457  grad 0.51  lr 3.00e-04  12.3k tok/s  MFU 45.7%  mem 2.00 GiB  left 1:00"
    ]


def test_a_run_that_stops_early_counts_to_its_end():
    stream = io.StringIO()
    console = RunConsole(1, stream=stream)
    console.begin(9, 12, 40)
    console.write(ROW)
    assert "step 10/40" in stream.getvalue()
    assert "left 0:04" in stream.getvalue()


def test_waiting_for_data_a_validation_and_a_skipped_step_are_shown():
    (line,) = printed(ROW | {"data_seconds": 0.5, "val_loss": 2.5, "skipped": True, "mfu": None})
    assert "data wait 25%" in line
    assert line.endswith("val_loss 2.5000  SKIPPED")
    assert "MFU" not in line


def test_the_load_of_experts_is_shown_where_there_are_some():
    (line,) = printed(ROW | {"expert_load_max": 1.5, "expert_load_min": 0.25, "expert_dropped": 0.0})
    assert "  experts 0.25-1.50x  left" in line
    (line,) = printed(ROW | {"expert_load_max": 1.5, "expert_load_min": 0.25, "expert_dropped": 0.02})
    assert "  dropped 2.0%  left" in line


def test_lines_come_at_their_interval_and_at_the_first_and_last_step():
    lines = printed(*(ROW | {"step": step} for step in range(1, 8)), every=3, first=0, last=7)
    assert [line.split("/")[0] for line in lines] == ["step 1", "step 3", "step 6", "step 7"]


@pytest.mark.parametrize(("seconds", "said"), [(0.4, "0:00"), (61, "1:01"), (3725.2, "1:02:05")])
def test_durations_are_read_as_clocks_are(seconds, said):
    assert duration(seconds) == said
