"""The emulated runtime as a fixture: present only in tests that ask for it, and undone after each."""

import sys
from pathlib import Path

import pytest

from loong_kernels import registry

EMULATED = str(Path(__file__).parent / "emulated_runtime")


@pytest.fixture
def runtime(monkeypatch):
    """Kunlun's runtime is installed; the first import of it makes torch look as on two XPUs."""
    monkeypatch.syspath_prepend(EMULATED)
    registry.REGISTRY._excluded.clear()
    yield
    loaded = sys.modules.pop("torch_xmlir", None)
    if loaded is not None:
        loaded.leave()
    registry.REGISTRY._excluded.clear()
