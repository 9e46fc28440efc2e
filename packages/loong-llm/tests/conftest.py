"""What the language models' tests share: ranks that stay alive for the session, and the folder of toy models."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for `toy_models`; ranks of the pool get the same path

from loong_core.parallel.pool import RankPool


def pytest_addoption(parser: pytest.Parser) -> None:
    """How much of the matrix of layouts runs, and how often a run is killed at a random moment."""
    parser.addoption("--layouts", choices=["subset", "all"], default="subset", help="which layouts are tried")
    parser.addoption("--random", type=int, default=0, help="how often a rank is killed at a random moment of a save")
    parser.addoption("--random-seed", type=int, default=0, help="decides the moments")


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Gloo ranks that every test of the session shares: `ranks.run(2, function, *args)`."""
    with RankPool() as pool:
        yield pool
