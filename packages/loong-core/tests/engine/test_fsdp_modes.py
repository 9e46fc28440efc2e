"""What the fsdp engine can be told besides a layout: plain data parallel, ZeRO-1, compiled layers, averaged weights."""

import pytest
import torch
from core_toys.model import forward_step, step_batches
from core_toys.reference import PlainTraining
from core_toys.training import assemble, toy_engine, train, trained
from torch import nn

from loong_core.checkpoint.resume import Checkpointer
from loong_core.engine.fsdp.engine import FsdpEngine
from loong_core.engine.settings import EmaSettings, EngineSettings
from loong_core.parallel.layout import Layout

PLAIN = {"precision": "fp32", "weight_decay": 0.2, "clip_grad": 0.5}


@pytest.mark.parametrize(
    ("world_size", "layout", "how"),
    [
        (2, Layout(replicate=2), {}),
        (2, Layout(), {"sharding": "optimizer"}),
        (4, Layout(replicate=2), {"sharding": "optimizer"}),
    ],
    ids=["plain data parallel", "ZeRO-1", "two copies of ZeRO-1"],
)
def test_five_clipped_updates_equal_plain_adamw(ranks, world_size, layout, how):
    settings = EngineSettings(**PLAIN, **how)
    plain = PlainTraining(settings, tied=True)
    expected = [plain.step(step, 8, 0.05) for step in range(5)]
    for curve, state in ranks.run(world_size, trained, layout, settings, 5, True, 8, "fsdp"):
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(expected), rtol=2e-5, atol=2e-5)
        for key, value in plain.weights().items():
            torch.testing.assert_close(state[f"weight/{key}"], value, rtol=2e-5, atol=2e-5)


def averaged(steps):
    settings = EngineSettings(**PLAIN, ema=EmaSettings(0.6))
    engine, context = toy_engine(Layout(), settings, kind="fsdp")
    weights, losses = [], []
    for step in range(steps):
        train(engine, context, [step])
        weights.append({key: each for key, each in assemble(engine.state_pieces()).items() if key.startswith("weight")})
        losses.append(engine.evaluate(step_batches(9, 4, context), forward_step).loss)
    state = assemble(engine.state_pieces())
    after = engine.accumulate(step_batches(steps, 4, context), forward_step).loss
    return weights, losses, state, after, assemble(engine.weight_pieces())


def test_the_average_is_the_one_of_the_formula_and_what_is_written(ranks):
    for weights, _, state, after, written in ranks.run(2, averaged, 4):
        whole, _ = ranks.run(1, trained, Layout(), EngineSettings(**PLAIN), 5, False, 4, "fsdp")[0]
        assert after == pytest.approx(whole[4][0], abs=1e-5)  # evaluation has left the weights as they were
        start = assemble_start(ranks)
        for key in weights[0]:
            average = start[key]
            for step, each in enumerate(weights, 1):
                average = average + (1 - min(0.6, (1 + step) / (10 + step))) * (each[key] - average)
            name = key.removeprefix("weight/")
            torch.testing.assert_close(state[f"ema/{name}"], average, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(written[f"weight/{name}"], average, rtol=1e-5, atol=1e-6)


def first_weights():
    engine, _ = toy_engine(Layout(), EngineSettings(**PLAIN), kind="fsdp")
    return assemble(engine.state_pieces(optimizer=False))


def assemble_start(ranks):
    return ranks.run(1, first_weights)[0]


def loss_of_average(state):
    """Loss at the weights that another engine has on average."""
    engine, context = toy_engine(Layout(), EngineSettings(**PLAIN), kind="fsdp")
    engine.load_state(lambda piece: state[piece.key.replace("weight/", "ema/")][piece.piece.slices], optimizer=False)
    return engine.evaluate(step_batches(9, 4, context), forward_step).loss


def test_evaluation_is_of_the_average(ranks):
    _, losses, state, _, _ = ranks.run(2, averaged, 4)[0]
    (expected,) = ranks.run(1, loss_of_average, {key: each for key, each in state.items() if key.startswith("ema")})
    assert losses[-1] == pytest.approx(expected, abs=1e-6)


def part(folder, steps):
    settings = EngineSettings(**PLAIN, ema=EmaSettings(0.9))
    engine, context = toy_engine(Layout(), settings, kind="fsdp")
    checkpoints = Checkpointer(folder, keep=None, context=context)
    checkpoints.load(engine)
    curve = train(engine, context, steps, global_batch=6)
    checkpoints.save(steps[-1] + 1, engine, {})
    checkpoints.finish()
    return curve, assemble(engine.state_pieces())


def test_averages_are_saved_and_go_on_at_another_world_size(ranks, tmp_path):
    _, whole = ranks.run(1, part, tmp_path / "whole", range(4))[0]
    ranks.run(2, part, tmp_path / "parts", range(2))
    _, state = ranks.run(3, part, tmp_path / "parts", range(2, 4))[0]
    assert [key for key in state if key.startswith("ema/")]
    for key, value in whole.items():
        torch.testing.assert_close(state[key], value, rtol=1e-5, atol=1e-6)


class Precise(nn.Module):
    keeps_float32 = True

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return x * self.weight


class Coarse(nn.Module):
    def __init__(self):
        super().__init__()
        self.precise = Precise()
        self.weight = nn.Parameter(torch.ones(3))


def precisions():
    from core_toys.model import build_stages, weight_map  # noqa: F401

    from loong_core.checkpoint.weight_map import Rule, Span, WeightMap
    from loong_core.device.cpu import CpuDevice
    from loong_core.parallel.context import ParallelContext

    names = WeightMap([Rule(name, Span(name, (3,))) for name in ("weight", "precise.weight")])
    seen = {}
    model = Coarse()
    model.precise.register_forward_hook(
        lambda module, given, out: seen.update(precise=module.weight.dtype, given=given[0].dtype)
    )
    model.forward = lambda x: (seen.update(coarse=model.weight.dtype), model.precise(x).sum() + model.weight.sum())[1]
    engine = FsdpEngine(
        [model], names, ParallelContext.build(Layout(), "cpu"), CpuDevice(), EngineSettings(precision="bf16")
    )
    engine.stages[0](torch.ones(2, 3))
    return seen


def test_bf16_leaves_modules_in_float32_that_ask_for_it_and_casts_no_input(ranks):
    assert ranks.run(1, precisions) == [{"precise": torch.float32, "coarse": torch.bfloat16, "given": torch.float32}]
