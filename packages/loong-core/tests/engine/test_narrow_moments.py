"""AdamW's moments kept in bfloat16, by either engine: plain AdamW whose moments are rounded after every step."""

from dataclasses import replace

import pytest
import torch
from core_toys.reference import PlainTraining
from core_toys.training import toy_engine, train, trained

from loong_core.checkpoint.resume import Checkpointer
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.layout import Layout

SETTINGS = EngineSettings(precision="fp32", weight_decay=0.2, clip_grad=0.5, moments="bf16")


@pytest.mark.parametrize("kind", ["megatron", "fsdp"])
def test_updates_are_plain_adamws_with_rounded_moments(ranks, kind):
    plain, exact = PlainTraining(SETTINGS), PlainTraining(replace(SETTINGS, moments="fp32"))
    expected = [plain.step(step, 4, 0.05) for step in range(5)]
    for step in range(5):
        exact.step(step, 4, 0.05)
    for curve, state in ranks.run(2, trained, Layout(), SETTINGS, 5, False, 4, kind):
        assert {value.dtype for key, value in state.items() if key.startswith("exp_avg")} == {torch.bfloat16}
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(expected), rtol=2e-5, atol=2e-5)
        apart = 0.0
        for key, value in plain.weights().items():
            torch.testing.assert_close(state[f"weight/{key}"], value, rtol=5e-5, atol=5e-5)
            apart = max(apart, float((exact.weights()[key] - value).abs().max()))
        assert apart > 3e-4  # a run with float32 moments would not pass


def stopped_and_resumed(folder, kind):
    engine, context = toy_engine(Layout(), SETTINGS, kind=kind)
    train(engine, context, range(3))
    checkpoints = Checkpointer(folder, keep=None, context=context)
    checkpoints.save(3, engine, {})
    checkpoints.finish()
    left_alone = train(engine, context, range(3, 6))
    other, context = toy_engine(Layout(), SETTINGS, kind=kind)
    checkpoints.load(other)
    return left_alone, train(other, context, range(3, 6))


@pytest.mark.parametrize("kind", ["megatron", "fsdp"])
def test_a_resumed_run_takes_the_same_steps(ranks, tmp_path, kind):
    for left_alone, resumed in ranks.run(2, stopped_and_resumed, tmp_path / "checkpoints", kind):
        assert resumed == left_alone
