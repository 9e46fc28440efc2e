"""Each case of the matrix is run once, and its tests look at what came out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside; ranks of the pool get the same path

from layout_cases import CASES, Case
from layout_ranks import Outcome, alone, one_rank, run_case, save_model
from torch import Tensor

from loong_core.parallel.pool import RankPool


@dataclass
class Line:
    """What the table at the end of the session says of a case."""

    case: Case
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Ran:
    """A case, what each rank found, and what one rank by itself finds.

    Attributes:
        case: the case.
        ranks: outcomes in order of rank.
        exact: loss, gradients and choices of plain PyTorch in float64.
        single: the engine's outcome on one rank.
        line: of the table.
    """

    case: Case
    ranks: list[Outcome]
    exact: tuple[float, dict[str, Tensor], dict]
    single: Outcome
    line: Line


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The cases of the option `--layouts`."""
    if "ran" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--layouts") == "all"
        chosen = [name for name, case in CASES.items() if everything or case.quick]
        metafunc.parametrize("ran", chosen, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `--layouts all`, leave out what only the whole matrix has."""
    if config.getoption("--layouts") != "all":
        left_out = [item for item in items if item.get_closest_marker("whole_matrix")]
        items[:] = [item for item in items if item not in left_out]
        config.hook.pytest_deselected(items=left_out)


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and what is told at the end."""
    config.addinivalue_line("markers", "whole_matrix: runs only with --layouts all")
    config.stash[_TABLE], config.stash[_SAID] = {}, []


@pytest.fixture
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A line for the end of the session."""
    return request.config.stash[_SAID].append


@pytest.fixture(scope="session")
def run_layout(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory, table: dict) -> Callable[[str], Ran]:
    """Runs a case by name, once."""

    @cache
    def folder(model: str) -> Path:
        return save_model(model, tmp_path_factory.mktemp("model"))

    @cache
    def exact(model: str, data: str) -> tuple:
        return alone(folder(model), data)

    @cache
    def single(model: str, data: str) -> Outcome:
        (outcome,) = ranks.run(1, one_rank, model, data, folder(model))
        return outcome

    @cache
    def run(name: str) -> Ran:
        case = CASES[name]
        expected = exact(case.model, case.data), single(case.model, case.data)
        line = table[name] = Line(case)
        began = monotonic()
        outcomes = ranks.run(case.ranks, run_case, case, folder(case.model), timeout=300)
        line.seconds = monotonic() - began
        return Ran(case, outcomes, *expected, line)

    return run


@pytest.fixture(scope="session")
def ran(request: pytest.FixtureRequest, run_layout: Callable[[str], Ran]) -> Ran:
    """One case of the matrix."""
    return run_layout(request.param)


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> dict[str, Line]:
    """Lines by name of the case, told at the end."""
    return request.config.stash[_TABLE]


_TABLE = pytest.StashKey[dict[str, Line]]()
_SAID = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """The table: how far each case was from one rank."""
    lines, said = config.stash[_TABLE], config.stash[_SAID]
    columns = sorted({name for line in lines.values() for name in line.figures})
    if columns or said:
        terminalreporter.section("layouts against one rank, largest differences")
    for line in said:
        terminalreporter.write_line(line)
    if not columns:
        return
    width = max(map(len, lines))
    terminalreporter.write_line(f"{'':{width}}  ranks  {'engine':8}  " + "  ".join(columns) + "  seconds")
    for name, line in lines.items():
        figures = "  ".join(
            f"{line.figures[each]:{len(each)}.2g}" if each in line.figures else " " * len(each) for each in columns
        )
        terminalreporter.write_line(
            f"{name:{width}}  {line.case.ranks:5}  {line.case.engine:8}  {figures}  {line.seconds:7.1f}"
        )
