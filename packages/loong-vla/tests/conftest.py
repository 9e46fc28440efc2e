"""What the tests of robot policies share: ranks that stay alive for the session, and the folders of toys."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
# For `vla_toys` and the case that the oracle is shown; ranks of the pool get the same path.
sys.path[:0] = [str(HERE), str(HERE / "oracle")]

from loong_core.parallel.pool import RankPool


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Gloo ranks that every test of the session shares: `ranks.run(2, function, *args)`."""
    with RankPool() as pool:
        yield pool
