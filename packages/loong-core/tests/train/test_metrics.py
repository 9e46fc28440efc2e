"""metrics.jsonl has each step once, whatever happened to the processes that wrote it."""

import json

import pytest

from loong_core.errors import LoongError, UserError
from loong_core.train.metrics import MetricsFile, read_rows, utilisation


def rows(path):
    return [row["step"] for row in read_rows(path)]


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in range(1, 6)))
    return path


def test_rows_past_the_checkpoint_are_dropped_on_resume(path):
    metrics = MetricsFile(path, resume_after=3)
    assert rows(path) == [1, 2, 3]
    metrics.write({"step": 4, "loss": 0.5})
    assert rows(path) == [1, 2, 3, 4]
    metrics.close()
    assert read_rows(path)[2] == {"step": 3, "loss": 1 / 3}


def test_each_row_is_on_disk_when_it_is_written(tmp_path):
    metrics = MetricsFile(tmp_path / "new.jsonl", resume_after=0)
    metrics.write({"step": 1, "mfu": float("nan")})
    assert (tmp_path / "new.jsonl").read_text() == '{"step": 1, "mfu": null}\n'
    metrics.close()


def test_a_last_line_that_a_killed_run_left_half_written_is_dropped(path):
    path.write_text(path.read_text()[:-9])
    assert rows(path) == [1, 2, 3, 4]
    MetricsFile(path, resume_after=4).close()
    assert path.read_text().endswith('{"step": 4, "loss": 0.25}\n')


def test_a_broken_line_elsewhere_names_file_and_line(path):
    path.write_text(path.read_text().replace('{"step": 2', '{"step" 2'))
    with pytest.raises(UserError, match=r"metrics\.jsonl, line 2 is not JSON"):
        read_rows(path)


def test_rows_that_are_missing_before_the_checkpoint_are_counted(path):
    metrics = MetricsFile(path, resume_after=7)
    metrics.close()
    assert metrics.missing == 2


def test_utilisation_is_the_share_of_all_ranks_peak():
    assert utilisation(1000.0, 6e9, ranks=2, peak_flops_per_rank=1e13) == 0.3
    assert utilisation(1000.0, 6e9, ranks=2, peak_flops_per_rank=None) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "is no text file"),
        (b"[1]\n{}\n", "line 1 has no step"),
        (b'{"step": "x"}\n', "line 1 has no step"),
    ],
)
def test_a_damaged_file_is_told_and_kept(path, content, words):
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as refused:
        MetricsFile(path, resume_after=1)
    assert "a run goes on without it" in str(refused.value)
    assert path.read_bytes() == content


def test_a_full_disk_is_told_with_what_to_do(path, monkeypatch):
    metrics = MetricsFile(path, resume_after=5)
    metrics.close()
    with open("/dev/full", "a") as full:
        monkeypatch.setattr(metrics, "_file", full)
        with pytest.raises(LoongError, match="No space left on device; mend that"):
            metrics.write({"step": 6, "long": "x" * 10_000})
