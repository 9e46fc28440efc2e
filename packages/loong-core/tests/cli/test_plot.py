"""`loong plot` draws runs, and says what is wrong with a folder that holds none."""

import json
import struct

import pytest

from loong_core.cli.curves import read_run


def row(step, **more):
    figures = {"loss": 5.0 / step, "grad_norm": 1.0 / step, "lr": 1e-3, "tokens": 64 * step, "tokens_per_second": 900.0}
    return {"step": step, **figures, "mfu": None, "memory_bytes": 2**30, **more}


@pytest.fixture
def run(tmp_path):
    """`run(name, rows)` writes a run folder; `tail` is what a killed run left of its last line."""

    def write(name="run", rows=None, tail=""):
        folder = tmp_path / name
        folder.mkdir()
        rows = [row(step) for step in range(1, 6)] if rows is None else rows
        (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows) + tail)
        return folder

    return write


def size_of(png):
    """Width and height in a PNG's header."""
    content = png.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def test_one_run_is_drawn_into_its_folder(loong, run):
    folder = run(rows=[row(1, val_loss_before=6.0), row(2), row(3, val_loss=4.0)])
    answer = loong("plot", folder)
    assert (answer.status, answer.out) == (0, f"{folder / 'loss.png'}\n")
    assert size_of(folder / "loss.png") == (960, 1080)


def test_validation_is_drawn_too(loong, run):
    plain, validated = run("plain"), run("validated", [row(step, val_loss=4.0) for step in range(1, 6)])
    loong("plot", plain)
    loong("plot", validated)
    assert (plain / "loss.png").read_bytes() != (validated / "loss.png").read_bytes()


def test_several_runs_are_drawn_into_one_picture(loong, run, tmp_path):
    png = tmp_path / "new" / "both.png"
    answer = loong("plot", run("one"), run("two"), "-o", png)
    assert answer.status == 0
    assert size_of(png) == (960, 1080)


def test_several_runs_without_a_name_are_drawn_here(loong, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loong("plot", run("one"), run("two"))
    assert size_of(tmp_path / "loss.png") == (960, 1080)


def test_a_metrics_file_may_be_named_itself(loong, run):
    folder = run()
    assert loong("plot", folder / "metrics.jsonl").status == 0
    assert (folder / "loss.png").exists()


def test_a_torn_last_line_is_left_out(run):
    assert len(read_run(run(tail='{"step": 6, "lo')).rows) == 5


def test_steps_without_a_number_leave_a_gap(run):
    rows = [row(1), row(2, loss=None), row(3)]
    assert read_run(run(rows=rows)).series("loss") == ([1, 3], [5.0, 5.0 / 3])


def test_a_missing_folder_is_named(loong, tmp_path):
    answer = loong("plot", tmp_path / "nowhere")
    assert answer.status == 2
    assert f"{tmp_path / 'nowhere'} does not exist" in answer.err


def test_a_folder_without_metrics_is_named(loong, tmp_path):
    answer = loong("plot", tmp_path)
    assert answer.status == 2
    assert "holds no metrics.jsonl" in answer.err


@pytest.mark.parametrize("tail", ["", '{"step": 1, "lo'])
def test_a_run_without_a_finished_step_is_named(tail, loong, run):
    answer = loong("plot", run(rows=[], tail=tail))
    assert answer.status == 2
    assert "has no rows; the run has not finished a step yet" in answer.err


def test_a_broken_line_within_the_file_is_named_by_its_number(loong, run):
    folder = run(tail='{"step": 6, "lo\n{"step": 7}\n')
    answer = loong("plot", folder)
    assert answer.status == 2
    assert f"{folder / 'metrics.jsonl'}, line 6 is not JSON" in answer.err


@pytest.mark.parametrize("line", ['{"loss": 1.0}', "3", '{"step": "one"}'])
def test_json_that_is_no_metrics_is_named(line, loong, run):
    answer = loong("plot", run(rows=[row(1)], tail=line + "\n"))
    assert answer.status == 2
    assert "line 2 has no step" in answer.err


def test_a_file_that_is_no_text_is_named(loong, tmp_path):
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff\xfe")
    answer = loong("plot", tmp_path / "picture.png")
    assert answer.status == 2
    assert "is no text file" in answer.err


def test_a_picture_that_cannot_be_written_is_named(loong, run, tmp_path):
    (tmp_path / "file").write_text("")
    answer = loong("plot", run(), "-o", tmp_path / "file" / "loss.png")
    assert answer.status == 2
    assert "cannot be written" in answer.err
