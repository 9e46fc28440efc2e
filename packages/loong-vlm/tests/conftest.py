"""What the tests share: ranks that stay alive for the session, and the folder of toy models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `vision_toys`; ranks of the pool get the same path

from loong_core.parallel.pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Gloo ranks that every test of the session shares: `ranks.run(2, function, *args)`."""
    with RankPool() as pool:
        yield pool


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many of the layouts run."""
    parser.addoption("--layouts", choices=["subset", "all"], default="subset", help="which layouts are tried")
