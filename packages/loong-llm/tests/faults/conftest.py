"""What is done only on request."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """The marker."""
    config.addinivalue_line("markers", "random_moments: runs only with --random N")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `--random N`, leave out what needs it."""
    if config.getoption("--random") == 0:
        left_out = [item for item in items if item.get_closest_marker("random_moments")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)
