"""GR00T divided among ranks, with parts frozen, and with blocks that repeat their forward: the numbers of one rank."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # for `groot_ranks`; ranks of the pool get the same path

from groot_ranks import one_groot_step
from policy_ranks import LAYOUTS, Outcome, assembled

from loong_core.parallel.pool import RankPool

BACKBONE = ("_groot_model.backbone.*",)


@cache
def alone(ranks: RankPool) -> tuple[Outcome, dict[str, torch.Tensor]]:
    outcomes = ranks.run(1, one_groot_step, {})
    return outcomes[0], assembled(outcomes)


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        torch.testing.assert_close(found[key], values, rtol=1e-9, atol=1e-12, msg=lambda text, k=key: f"{k}: {text}")


@pytest.mark.parametrize("name", list(LAYOUTS))
def test_loss_and_gradients_are_those_of_one_rank(ranks: RankPool, name: str) -> None:
    world_size, degrees, sharding = LAYOUTS[name]
    expected, gradients = alone(ranks)
    outcomes = ranks.run(world_size, one_groot_step, degrees, sharding)
    for outcome in outcomes:
        assert outcome.loss == pytest.approx(expected.loss, rel=1e-12)
        assert outcome.norm == pytest.approx(expected.norm, rel=1e-11)
    assert_same(assembled(outcomes), gradients)


def test_blocks_that_repeat_their_forward_change_nothing(ranks: RankPool) -> None:
    expected, gradients = alone(ranks)
    (outcome,) = ranks.run(1, one_groot_step, {}, "everything", "fp64", (), True)
    assert outcome.loss == pytest.approx(expected.loss, rel=1e-12)
    assert_same(assembled([outcome]), gradients)


def test_a_frozen_backbone_has_no_gradients_and_leaves_the_heads_as_they_were(ranks: RankPool) -> None:
    expected, gradients = alone(ranks)
    outcomes = ranks.run(2, one_groot_step, {"shard": 2}, "everything", "fp64", BACKBONE)
    assert outcomes[0].loss == pytest.approx(expected.loss, rel=1e-12)
    head = {name: values for name, values in gradients.items() if ".action_head." in name}
    assert_same({name: values for name, values in assembled(outcomes).items() if ".action_head." in name}, head)
    assert not any(values.any() for name, values in assembled(outcomes).items() if ".backbone." in name)


def test_bf16_under_the_engine_is_near_float64(ranks: RankPool) -> None:
    expected, _ = alone(ranks)
    for outcome in ranks.run(2, one_groot_step, {"shard": 2}, "everything", "bf16"):
        assert outcome.loss == pytest.approx(expected.loss, rel=0.05)
