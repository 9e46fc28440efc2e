"""Policies divided among ranks have the loss and the gradients of one rank: FSDP2, DDP, ZeRO-1 and HSDP."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `policy_ranks`; ranks of the pool get the same path

from policy_ranks import LAYOUTS, Outcome, assembled, one_step

from loong_core.parallel.pool import RankPool


@cache
def alone(ranks: RankPool, kind: str) -> tuple[Outcome, dict[str, torch.Tensor]]:
    outcomes = ranks.run(1, one_step, kind, {})
    return outcomes[0], assembled(outcomes)


@pytest.mark.parametrize("name", list(LAYOUTS))
@pytest.mark.parametrize("kind", ["pi05", "pi0"])
def test_loss_and_gradients_are_those_of_one_rank(ranks: RankPool, kind: str, name: str) -> None:
    world_size, degrees, sharding = LAYOUTS[name]
    expected, gradients = alone(ranks, kind)
    outcomes = ranks.run(world_size, one_step, kind, degrees, sharding)
    for outcome in outcomes:
        assert outcome.loss == pytest.approx(expected.loss, rel=1e-12)
        assert outcome.norm == pytest.approx(expected.norm, rel=1e-12)
    found = assembled(outcomes)
    assert found.keys() == gradients.keys()
    for key, values in gradients.items():
        torch.testing.assert_close(found[key], values, rtol=1e-10, atol=1e-13, msg=lambda text, k=key: f"{k}: {text}")


@pytest.mark.parametrize("kind", ["pi05", "pi0"])
def test_bf16_under_the_engine_is_near_float64(ranks: RankPool, kind: str) -> None:
    expected, _ = alone(ranks, kind)
    for outcome in ranks.run(2, one_step, kind, {"shard": 2}, "everything", "bf16"):
        assert outcome.loss == pytest.approx(expected.loss, rel=0.02)
        assert outcome.norm == pytest.approx(expected.norm, rel=0.05)
