"""Pipelined layouts of the megatron engine equal one rank: loss, every gradient, the norm, and clipped updates."""

import pytest
import torch
from core_toys.model import forward_step, step_batches
from core_toys.reference import PlainTraining
from core_toys.training import assemble, toy_engine, trained

from loong_core.engine.settings import EngineSettings
from loong_core.errors import UserError
from loong_core.parallel.layout import Layout

FP64 = EngineSettings(precision="fp64")
FP32 = EngineSettings(precision="fp32", clip_grad=0.5)

LAYOUTS = {
    "two stages": (2, Layout(pipeline=2)),
    "two stages, two data ranks": (4, Layout(pipeline=2)),
    "four stages": (4, Layout(pipeline=4)),
    "two virtual stages on two ranks (trap 1)": (2, Layout(pipeline=2, virtual_pipeline=2)),
    "two virtual stages, two data ranks": (4, Layout(pipeline=2, virtual_pipeline=2)),
}


def gradients(layout, tied, hidden_size, lengths):
    engine, context = toy_engine(layout, FP64, tied=tied, hidden_size=hidden_size)
    batches = [
        batch
        for number, length in enumerate(lengths)
        for batch in step_batches(number, context.data.size, context, length)
    ]
    loss = engine.accumulate(batches, forward_step)
    evaluated = engine.evaluate(batches, forward_step)
    return loss, evaluated, engine.grad_norm(), assemble(engine.gradient_pieces())


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_loss_and_every_gradient_equal_one_rank_in_float64(ranks, name, tied):
    world_size, layout = LAYOUTS[name]
    data = layout.data_for(world_size)
    plain = PlainTraining(FP64, tied=tied, dtype=torch.float64)
    expected_loss, expected_norm = plain.step(0, 4 * data, None)
    for loss, evaluated, norm, whole in ranks.run(world_size, gradients, layout, tied, 8, [10] * 4):
        assert loss.loss == pytest.approx(expected_loss, abs=1e-13)
        assert evaluated.loss == pytest.approx(expected_loss, abs=1e-13)
        assert loss.metrics == {"tokens_seen": 10.0}
        assert norm == pytest.approx(expected_norm, abs=1e-12)
        expected = plain.gradients()
        assert len(whole) == len(expected)
        for key, gradient in expected.items():
            torch.testing.assert_close(whole[f"gradient/{key}"], gradient, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["two stages", "two virtual stages on two ranks (trap 1)"])
def test_microbatches_of_unlike_lengths_pass_the_stage_boundaries(ranks, name):
    """Trap 9: sizes are exchanged, and must not cross where both neighbours are one rank."""
    world_size, layout = LAYOUTS[name]
    lengths = [3, 10, 7, 5]
    one, several = (
        ranks.run(size, gradients, each, False, 8, lengths)[0] for size, each in ((1, Layout()), (world_size, layout))
    )
    assert several[0].loss == pytest.approx(one[0].loss, abs=1e-13)
    assert several[2] == pytest.approx(one[2], abs=1e-12)
    for key, gradient in one[3].items():
        torch.testing.assert_close(several[3][key], gradient, rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", LAYOUTS)
def test_three_clipped_updates_with_a_tied_table_equal_one_rank(ranks, name):
    """Traps 2 and 6: both copies of the table get the summed gradient, and the norm counts it once."""
    world_size, layout = LAYOUTS[name]
    plain = PlainTraining(FP32, tied=True)
    expected = [plain.step(step, 8, 0.05) for step in range(3)]
    for curve, state in ranks.run(world_size, trained, layout, FP32, 3, True, 8):
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(expected), rtol=2e-5, atol=2e-5)
        for key, value in plain.weights().items():
            torch.testing.assert_close(state[f"weight/{key}"], value, rtol=2e-5, atol=2e-5)


def copies_of_the_table():
    engine, context = toy_engine(Layout(pipeline=2), FP32, tied=True)
    for step in range(2):
        engine.accumulate(step_batches(step, 4, context), forward_step)
        engine.apply(0.05)
    return engine.stages[0].tied_table.detach().clone()


def test_both_copies_of_a_tied_table_stay_bit_equal(ranks):
    copies = ranks.run(4, copies_of_the_table)
    assert all(torch.equal(copies[0], copy) for copy in copies)


def evaluated_three():
    engine, context = toy_engine(Layout(pipeline=2, virtual_pipeline=2), FP64)
    loss = engine.evaluate(step_batches(0, 3, context), forward_step)
    return loss.loss, loss.tokens


def test_evaluation_takes_any_number_of_microbatches_in_an_interleaved_pipeline(ranks):
    plain = PlainTraining(FP64, dtype=torch.float64)
    expected, _ = plain.step(0, 3, None)
    for loss, tokens in ranks.run(2, evaluated_three):
        assert loss == pytest.approx(expected, abs=1e-13)
        assert tokens == 10 + 9 + 8


def odd_microbatches():
    engine, context = toy_engine(Layout(pipeline=2, virtual_pipeline=2), FP64)
    with pytest.raises(UserError, match=r"3 microbatches .* layout.pipeline=2, which the interleaved schedule"):
        engine.accumulate(step_batches(0, 3, context), forward_step)


def test_microbatches_that_do_not_fill_the_interleaved_schedule_are_refused_with_the_keys_to_change(ranks):
    ranks.run(2, odd_microbatches)
