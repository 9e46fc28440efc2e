"""Running the `loong` command in this process, with plug-ins declared by the test."""

from importlib.metadata import EntryPoint
from types import SimpleNamespace

import pytest

from loong_core.cli import families
from loong_core.cli.entry import run_app
from loong_core.cli.main import app
from loong_core.device import discovery


@pytest.fixture
def loong(capsys):
    """`loong(*arguments)` gives status, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            run_app(app, [str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return SimpleNamespace(status=end.value.code, out=out, err=err, flat=" ".join(out.split()))

    return run


@pytest.fixture
def declare(monkeypatch):
    """Declare entry points of one group in place of those that are installed; targets are `module:object`."""
    modules = {discovery.ENTRY_POINT_GROUP: discovery, families.ENTRY_POINT_GROUPS[0]: families}

    def put(group, **targets):
        entries = [EntryPoint(name, target, group) for name, target in targets.items()]
        monkeypatch.setattr(
            modules[group], "entry_points", lambda group: [each for each in entries if each.group == group]
        )

    return put
