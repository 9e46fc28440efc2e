"""Whatever the layout, loss and every gradient of every part are those of one rank; ranks without images among them."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `vision_cases`; ranks of the pool get the same path

from vision_cases import CASES, alone, run_case, save_model

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = metafunc.config.getoption("--layouts") == "all"
    metafunc.parametrize("name", [name for name, case in CASES.items() if everything or case.quick])


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """By name: its folder, and what one rank finds."""

    @cache
    def made(name: str):
        folder = save_model(name, tmp_path_factory.mktemp("model"))
        return folder, *alone(folder)

    return made


def test_loss_and_every_gradient_are_those_of_one_rank(name, model, ranks):
    case = CASES[name]
    folder, loss, expected = model(case.model)
    outcomes = ranks.run(case.ranks, run_case, case, folder)
    gradients = {each: torch.full_like(values, torch.nan) for each, values in expected.items()}
    for piece, values in (box for outcome in outcomes for box in outcome.gradients):
        gradients[piece.name][piece.slices] = values
    torch.testing.assert_close(gradients, expected, **EXACT)
    norm = torch.stack([each.square().sum() for each in expected.values()]).sum().sqrt().item()
    for outcome in outcomes:
        assert outcome.loss == pytest.approx(loss, rel=1e-12)
        assert outcome.norm == pytest.approx(norm, rel=1e-9)
