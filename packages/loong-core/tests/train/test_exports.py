"""A run writes its model every so many steps and when it is asked, and goes on as if it had not."""

import pytest
from toy_run import run_toy

from loong_core.config import RunFolder
from loong_core.errors import UserError
from loong_core.train.exports import Exports


def exported(tmp_path, *overrides, events=None):
    """Folders written, and the run's last weight."""
    written = []
    _, weight = run_toy(tmp_path, *overrides, events=events, export=written.append)
    return [folder.relative_to(tmp_path).as_posix() for folder in written], weight


def test_models_are_written_at_their_interval_but_not_for_the_last_step(tmp_path):
    plain, weight = exported(tmp_path / "plain")
    folders, same = exported(tmp_path / "asked", "checkpoint.export_every=4")
    assert plain == []
    assert folders == ["exports/step-00000004"]
    assert same == weight


def test_a_request_is_answered_once_after_the_step_under_way(tmp_path):
    folders, _ = exported(tmp_path, events={3: RunFolder(tmp_path).export_request.touch})
    assert folders == ["exports/step-00000003"]
    assert not RunFolder(tmp_path).export_request.exists()
    assert "model of step 3 written to" in (tmp_path / "logs" / "rank-0.log").read_text()


def test_a_run_that_cannot_write_its_model_says_so_at_once(tmp_path):
    with pytest.raises(UserError, match=r"checkpoint\.export_every: this run writes its model at its end only"):
        run_toy(tmp_path, "checkpoint.export_every=2")


def test_a_request_leaves_the_signal_that_came_with_it(tmp_path):
    RunFolder(tmp_path).export_request.touch()
    exports = Exports(RunFolder(tmp_path), None, 9, lambda folder: None, str)
    assert exports.take(exports.noted(15)) == 15
    assert exports.at(1) == RunFolder(tmp_path).export_of(1)
    assert exports.take(exports.noted(2)) == 2
    assert exports.at(2) is None


def test_a_folder_is_in_use_while_it_is_claimed(tmp_path):
    seen = []
    run_toy(tmp_path, events={2: lambda: seen.append(RunFolder(tmp_path).in_use)})
    assert seen == [True]
    assert not RunFolder(tmp_path).in_use
