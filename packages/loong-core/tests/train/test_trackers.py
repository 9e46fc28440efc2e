"""Trackers that are asked for but not installed are named with the extra that brings them."""

import sys

import pytest

from loong_core.config import LoggingSection
from loong_core.errors import UserError
from loong_core.train.trackers import open_trackers


@pytest.mark.parametrize(
    ("settings", "module", "extra"),
    [
        ({"tensorboard": True}, "torch.utils.tensorboard", "tensorboard"),
        ({"wandb": {"project": "p"}}, "wandb", "wandb"),
    ],
)
def test_a_missing_tracker_names_its_extra(tmp_path, monkeypatch, settings, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(
        UserError, match=rf"logging\.{extra}: {extra} is not installed; pip install 'loong-core\[{extra}\]'"
    ):
        open_trackers(LoggingSection.model_validate(settings), tmp_path, {}, resume_after=0)


def test_no_tracker_is_opened_unasked(tmp_path):
    assert open_trackers(LoggingSection(), tmp_path, {}, resume_after=0) == []


def test_a_tracker_gets_figures_only_and_continues_its_run(tmp_path, monkeypatch):
    calls = []

    class Stand:
        id = "abc"

        def init(self, **arguments):
            calls.append(arguments["id"])
            return self

        def log(self, figures, step):
            calls.append((step, figures))

        def finish(self):
            calls.append("finished")

    monkeypatch.setitem(sys.modules, "wandb", Stand())
    for _ in range(2):
        (tracker,) = open_trackers(
            LoggingSection.model_validate({"wandb": {"project": "p"}}), tmp_path, {}, resume_after=0
        )
    tracker.write({"step": 3, "loss": 1.5, "mfu": None, "skipped": True})
    tracker.close()
    assert calls == [None, "abc", (3, {"loss": 1.5, "skipped": 1.0}), "finished"]


def test_a_run_that_wandb_refuses_is_a_users_error_with_a_way_out(tmp_path, monkeypatch):
    class Refusing:
        Error = type("Error", (Exception,), {})

        def init(self, **_):
            raise self.Error("No API key configured.")

    monkeypatch.setitem(sys.modules, "wandb", Refusing())
    settings = LoggingSection.model_validate({"wandb": {"project": "p"}})
    with pytest.raises(UserError, match=r"logging\.wandb: No API key configured; .*offline=true"):
        open_trackers(settings, tmp_path, {}, resume_after=0)
