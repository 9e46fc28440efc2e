"""The fsdp engine equals plain PyTorch on one rank, and exchanges checkpoints with the megatron engine."""

import pytest
import torch
from core_toys.model import forward_step, microbatch, step_batches
from core_toys.reference import PlainTraining
from core_toys.training import assemble, toy_engine, train, trained

from loong_core.checkpoint.resume import Checkpointer
from loong_core.engine.settings import EngineSettings
from loong_core.errors import UserError
from loong_core.parallel.layout import Layout

FP32 = EngineSettings(precision="fp32", weight_decay=0.2, clip_grad=0.5)


@pytest.mark.parametrize(
    ("world_size", "layout"),
    [(1, Layout()), (2, Layout()), (4, Layout(replicate=2))],
    ids=["one rank", "two shards", "two copies of two shards"],
)
def test_five_clipped_updates_with_decay_rules_equal_plain_adamw(ranks, world_size, layout):
    plain = PlainTraining(FP32, tied=True)
    expected = [plain.step(step, 4, 0.05) for step in range(5)]
    for curve, state in ranks.run(world_size, trained, layout, FP32, 5, True, 4, "fsdp"):
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(expected), rtol=2e-5, atol=2e-5)
        assert len([key for key in state if key.startswith("weight/")]) == len(plain.weights())
        for key, value in plain.weights().items():
            torch.testing.assert_close(state[f"weight/{key}"], value, rtol=2e-5, atol=2e-5)


def gradients(settings):
    engine, context = toy_engine(Layout(), settings, kind="fsdp")
    loss = engine.accumulate(step_batches(0, 6, context), forward_step)
    evaluated = engine.evaluate(step_batches(0, 6, context), forward_step)
    return loss, evaluated, engine.grad_norm(), assemble(engine.gradient_pieces())


def test_gradients_are_those_of_the_mean_over_all_trained_tokens(ranks):
    settings = EngineSettings(precision="fp64")
    plain = PlainTraining(settings, dtype=torch.float64)
    expected_loss, expected_norm = plain.step(0, 6, None)
    for loss, evaluated, norm, whole in ranks.run(3, gradients, settings):
        assert loss.loss == pytest.approx(expected_loss, abs=1e-13)
        assert evaluated.loss == pytest.approx(expected_loss, abs=1e-13)
        assert loss.metrics == {"tokens_seen": 10.0}
        assert norm == pytest.approx(expected_norm, abs=1e-13)
        for key, gradient in plain.gradients().items():
            torch.testing.assert_close(whole[f"gradient/{key}"], gradient, rtol=0, atol=1e-14)


def discarded_steps():
    engine, context = toy_engine(Layout(), FP32, kind="fsdp")
    train(engine, context, range(2))
    before = assemble(engine.state_pieces())
    engine.accumulate(step_batches(2, 4, context), forward_step)
    engine.grad_norm()
    engine.discard()
    return before, assemble(engine.state_pieces()), train(engine, context, range(2, 4))


def test_a_discarded_step_leaves_weights_and_moments_bit_equal_and_the_next_unchanged(ranks):
    before, after, curve = ranks.run(2, discarded_steps)[0]
    assert all(torch.equal(before[key], after[key]) for key in before)
    whole, _ = ranks.run(2, trained, Layout(), FP32, 4, False, 4, "fsdp")[0]
    assert curve == whole[2:]


def run_part(folder, kind, layout, settings, steps):
    engine, context = toy_engine(layout, settings, kind=kind)
    checkpoints = Checkpointer(folder, keep=None, context=context)
    checkpoints.load(engine)
    before = assemble(engine.state_pieces())
    curve = train(engine, context, steps, global_batch=6)
    checkpoints.save(steps[-1] + 1, engine, {})
    checkpoints.finish()
    return curve, before, assemble(engine.state_pieces()), assemble(engine.weight_pieces())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_run_that_stops_and_resumes_is_bit_equal_to_one_that_does_not(ranks, tmp_path, precision):
    settings = EngineSettings(precision=precision, clip_grad=0.5)
    whole = ranks.run(2, run_part, tmp_path / "whole", "fsdp", Layout(), settings, range(4))[0]
    ranks.run(2, run_part, tmp_path / "parts", "fsdp", Layout(), settings, range(2))
    second = ranks.run(2, run_part, tmp_path / "parts", "fsdp", Layout(), settings, range(2, 4))[0]
    assert second[0] == whole[0][2:]
    assert all(torch.equal(whole[2][key], value) for key, value in second[2].items())
    for key, value in second[3].items():
        assert value.dtype is settings.dtype
        assert torch.equal(value, second[2][key].to(settings.dtype))


@pytest.mark.parametrize(
    ("first", "second"),
    [(("fsdp", 2, Layout()), ("megatron", 4, Layout(pipeline=2))), (("megatron", 2, Layout()), ("fsdp", 3, Layout()))],
    ids=["fsdp to megatron", "megatron to fsdp"],
)
def test_either_engine_resumes_the_others_checkpoint(ranks, tmp_path, first, second):
    (kind, size, layout), (other, other_size, other_layout) = first, second
    settings = EngineSettings(precision="fp32", clip_grad=0.5)
    whole = ranks.run(size, run_part, tmp_path / "whole", kind, layout, settings, range(4))[0]
    saved = ranks.run(size, run_part, tmp_path / "parts", kind, layout, settings, range(2))[0]
    curve, found, _, _ = ranks.run(
        other_size, run_part, tmp_path / "parts", other, other_layout, settings, range(2, 4)
    )[0]
    assert found.keys() == saved[2].keys()
    assert all(torch.equal(found[key], value) for key, value in saved[2].items())
    torch.testing.assert_close(torch.tensor(curve), torch.tensor(whole[0][2:]), rtol=1e-5, atol=1e-5)


def bf16_main_weights():
    engine, context = toy_engine(Layout(), EngineSettings(precision="bf16"), kind="fsdp")
    curve = train(engine, context, range(3))
    return curve, {value.dtype for value in assemble(engine.state_pieces()).values()}


def test_bf16_keeps_float32_weights_and_moments(ranks):
    curve, dtypes = ranks.run(2, bf16_main_weights)[0]
    assert dtypes == {torch.float32}
    plain = PlainTraining(EngineSettings())
    expected = [plain.step(step, 4, 0.05) for step in range(3)]
    torch.testing.assert_close(torch.tensor(curve), torch.tensor(expected), rtol=0.05, atol=0.02)


def nothing_to_train_on():
    engine, _ = toy_engine(Layout(), FP32, kind="fsdp")
    batch = microbatch(0)
    batch.labels.fill_(-100)
    result = engine.accumulate([batch], forward_step)
    return result.loss, result.tokens, engine.grad_norm()


def test_a_batch_without_trained_tokens_has_loss_and_gradient_zero(ranks):
    assert ranks.run(1, nothing_to_train_on) == [(0.0, 0, 0.0)]


def unsupported():
    with pytest.raises(
        UserError, match=r"engine fsdp .* but layout.pipeline=2; set these to 1, or use engine: megatron"
    ):
        toy_engine(Layout(pipeline=2), FP32, kind="fsdp")


def test_a_layout_the_engine_cannot_serve_is_refused_with_the_way_out(ranks):
    ranks.run(2, unsupported)
