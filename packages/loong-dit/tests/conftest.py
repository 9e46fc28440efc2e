"""What the diffusion tests share: ranks that stay alive for the session, and the folder of toys."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `dit_toys`; ranks of the pool get the same path

from loong_core.parallel.pool import RankPool


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much of the matrix of layouts runs."""
    parser.addoption("--layouts", choices=["subset", "all"], default="subset", help="which layouts are tried")


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Gloo ranks that every test of the session shares: `ranks.run(2, function, *args)`."""
    with RankPool() as pool:
        yield pool
