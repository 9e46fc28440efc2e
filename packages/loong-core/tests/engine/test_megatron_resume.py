"""Runs of the megatron engine that stop and go on, under the same layout and under others."""

import pytest
import torch
from core_toys.training import assemble, toy_engine, train

from loong_core.checkpoint.resume import Checkpointer
from loong_core.engine.settings import EngineSettings
from loong_core.parallel.layout import Layout

FP32 = EngineSettings(precision="fp32", clip_grad=0.5, weight_decay=0.2)
BF16 = EngineSettings(precision="bf16", clip_grad=0.5, weight_decay=0.2)


def run_part(folder, layout, settings, steps, tied=False):
    """Resume from `folder` if it has a checkpoint, take `steps`, save; curve and whole state."""
    engine, context = toy_engine(layout, settings, tied=tied)
    checkpoints = Checkpointer(folder, keep=None, context=context)
    checkpoints.load(engine)
    curve = train(engine, context, steps)
    checkpoints.save(steps[-1] + 1, engine, {})
    checkpoints.finish()
    return curve, assemble(engine.state_pieces()), assemble(engine.weight_pieces())


def assert_bit_equal(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        assert torch.equal(value, other[key]), key


@pytest.mark.parametrize(
    ("world_size", "layout", "settings"),
    [(1, Layout(), FP32), (2, Layout(), FP32), (2, Layout(), BF16), (2, Layout(pipeline=2, virtual_pipeline=2), FP32)],
    ids=["one rank", "two data ranks", "two data ranks in bf16", "two pipeline ranks"],
)
def test_a_run_that_stops_and_resumes_is_bit_equal_to_one_that_does_not(ranks, tmp_path, world_size, layout, settings):
    whole, state, weights = ranks.run(world_size, run_part, tmp_path / "whole", layout, settings, range(4))[0]
    ranks.run(world_size, run_part, tmp_path / "parts", layout, settings, range(2))
    second, resumed, resumed_weights = ranks.run(
        world_size, run_part, tmp_path / "parts", layout, settings, range(2, 4)
    )[0]
    assert second == whole[2:]
    assert_bit_equal(state, resumed)
    assert_bit_equal(weights, resumed_weights)


@pytest.mark.parametrize(
    ("saved", "loaded"),
    [
        ((2, Layout()), (1, Layout())),
        ((1, Layout()), (4, Layout(replicate=2))),
        ((4, Layout(pipeline=2)), (2, Layout())),
        ((2, Layout()), (2, Layout(pipeline=2, virtual_pipeline=2))),
    ],
    ids=["2 data to 1", "1 to 2 copies of 2", "2 data x 2 stages to 2 data", "2 data to 2 x 2 virtual stages"],
)
def test_another_layout_reads_the_same_bits_and_goes_on_like_the_first(ranks, tmp_path, saved, loaded):
    (size, layout), (other_size, other_layout) = saved, loaded
    whole, _, _ = ranks.run(size, run_part, tmp_path / "whole", layout, FP32, range(4), True)[0]
    _, state, _ = ranks.run(size, run_part, tmp_path / "parts", layout, FP32, range(2), True)[0]
    second, resumed = ranks.run(other_size, resume_and_look, tmp_path / "parts", other_layout)[0]
    assert_bit_equal(state, resumed)
    torch.testing.assert_close(torch.tensor(second), torch.tensor(whole[2:]), rtol=1e-5, atol=1e-5)


def resume_and_look(folder, layout):
    engine, context = toy_engine(layout, FP32, tied=True)
    Checkpointer(folder, context=context).load(engine)
    state = assemble(engine.state_pieces())
    return train(engine, context, range(2, 4)), state


def weights_from_float32(folder):
    """A bf16 model filled from float32 values keeps them as its main weights."""
    engine, context = toy_engine(Layout(), BF16)
    Checkpointer(folder, context=context).load(engine, optimizer=False)
    return assemble(engine.state_pieces(optimizer=False)), assemble(engine.weight_pieces()), engine.updates


def test_weights_alone_can_be_loaded_into_a_fresh_optimizer_of_another_precision(ranks, tmp_path):
    _, state, _ = ranks.run(2, run_part, tmp_path, Layout(), FP32, range(2))[0]
    main, used, updates = ranks.run(2, weights_from_float32, tmp_path)[0]
    assert updates == 0
    for key, value in main.items():
        assert torch.equal(value, state[key])
        assert torch.equal(used[key], value.bfloat16())
