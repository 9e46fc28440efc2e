"""The megatron engine on data ranks equals plain PyTorch on one."""

from dataclasses import replace

import pytest
import torch
from core_toys.model import forward_step, microbatch, step_batches
from core_toys.reference import PlainTraining
from core_toys.training import assemble, toy_engine, train, trained

from loong_core.engine.settings import EngineSettings
from loong_core.parallel.layout import Layout

SETTINGS = EngineSettings(precision="fp32", weight_decay=0.2, clip_grad=0.5)


def reference_run(steps, settings=SETTINGS, tied=False, lr=0.05):
    plain = PlainTraining(settings, tied=tied)
    curve = [plain.step(step, 4, lr) for step in range(steps)]
    return curve, plain.weights()


def assert_same_run(run, reference, tolerance=2e-5):
    curve, state = run
    expected_curve, expected_weights = reference
    torch.testing.assert_close(torch.tensor(curve), torch.tensor(expected_curve), rtol=tolerance, atol=tolerance)
    weights = {key.removeprefix("weight/"): value for key, value in state.items() if key.startswith("weight/")}
    assert weights.keys() == expected_weights.keys()
    for name, expected in expected_weights.items():
        torch.testing.assert_close(weights[name], expected, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize("world_size", [1, 2])
def test_five_clipped_updates_with_decay_rules_equal_plain_adamw(ranks, world_size):
    for run in ranks.run(world_size, trained, Layout(), SETTINGS, 5):
        assert_same_run(run, reference_run(5))


def test_copies_of_the_optimizer_state_equal_plain_adamw(ranks):
    """layout.replicate: two groups of two data ranks, each of which shards the state."""
    for run in ranks.run(4, trained, Layout(replicate=2), SETTINGS, 3):
        assert_same_run(run, reference_run(3))


def gradients(layout, settings, order=1):
    engine, context = toy_engine(layout, settings)
    loss = engine.accumulate(step_batches(0, 4, context)[::order], forward_step)
    return loss, engine.grad_norm(), assemble(engine.gradient_pieces())


@pytest.mark.parametrize("world_size", [1, 2])
def test_gradients_are_those_of_the_mean_over_all_trained_tokens(ranks, world_size):
    """Microbatches have 10, 9, 8 and 7 trained tokens: a mean of means would differ."""
    settings = EngineSettings(precision="fp64")
    plain = PlainTraining(settings, dtype=torch.float64)
    expected_loss, expected_norm = plain.step(0, 4, None)
    for loss, norm, whole in ranks.run(world_size, gradients, Layout(), settings):
        assert loss.tokens == 10 + 9 + 8 + 7
        assert loss.loss == pytest.approx(expected_loss, abs=1e-13)
        assert norm == pytest.approx(expected_norm, abs=1e-13)
        for name, expected in plain.gradients().items():
            torch.testing.assert_close(whole[f"gradient/{name}"], expected, rtol=0, atol=1e-14)


def test_gradients_in_the_distributed_optimizers_shards_are_complete(ranks):
    plain = PlainTraining(SETTINGS)
    plain.step(0, 4, None)
    _, _, whole = ranks.run(2, gradients, Layout(), SETTINGS)[0]
    for name, expected in plain.gradients().items():
        torch.testing.assert_close(whole[f"gradient/{name}"], expected, rtol=1e-5, atol=1e-6)


def joined(batches):
    whole = [
        batches[0].__class__.from_lengths(
            torch.cat([batch.tokens for batch in batches]),
            torch.cat([batch.labels for batch in batches]),
            [10] * len(batches),
        )
    ]
    return whole


def four_microbatches_and_one(settings):
    losses = []
    for join in (list, joined):
        engine, _ = toy_engine(Layout(), settings)
        batches = join([microbatch(number) for number in range(4)])
        loss = engine.accumulate(batches, forward_step)
        losses.append((loss.loss, engine.grad_norm(), assemble(engine.gradient_pieces())))
    return losses


def test_accumulating_four_microbatches_equals_one_of_four_times_the_size(ranks):
    ((four, one),) = ranks.run(1, four_microbatches_and_one, EngineSettings(precision="fp64"))
    assert four[:2] == pytest.approx(one[:2], abs=1e-13)
    for name, gradient in four[2].items():
        torch.testing.assert_close(gradient, one[2][name], rtol=0, atol=1e-14)


def reported():
    engine, context = toy_engine(Layout(), SETTINGS)
    result = engine.accumulate(step_batches(0, 4, context), forward_step)
    evaluated = engine.evaluate(step_batches(0, 4, context), forward_step)
    return result, evaluated


def test_the_reported_loss_is_the_mean_over_tokens_and_not_divided_by_microbatches(ranks):
    """Trap 8: megatron's schedules divide a loss in place after it was handed to the report."""
    expected, _ = PlainTraining(SETTINGS).step(0, 4, None)
    for result, evaluated in ranks.run(2, reported):
        assert result.loss == pytest.approx(expected, abs=1e-6)
        assert evaluated.loss == pytest.approx(expected, abs=1e-6)
        assert result.metrics == {"tokens_seen": 10.0}


def nothing_to_train_on():
    engine, _ = toy_engine(Layout(), SETTINGS)
    batch = microbatch(0)
    batch.labels.fill_(-100)
    result = engine.accumulate([batch], forward_step)
    return result.loss, result.tokens, engine.grad_norm()


def test_a_batch_without_trained_tokens_has_loss_and_gradient_zero(ranks):
    assert ranks.run(1, nothing_to_train_on) == [(0.0, 0, 0.0)]


def discarded_steps():
    engine, context = toy_engine(Layout(), SETTINGS)
    train(engine, context, range(2))
    before = assemble(engine.state_pieces())
    engine.accumulate(step_batches(2, 4, context), forward_step)
    engine.grad_norm()
    engine.discard()
    after = assemble(engine.state_pieces())
    curve = train(engine, context, range(2, 4))
    return before, after, curve, engine.updates


def test_a_discarded_step_leaves_weights_and_moments_bit_equal_and_the_next_unchanged(ranks):
    before, after, curve, updates = ranks.run(2, discarded_steps)[0]
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert before.keys() == after.keys()
    assert updates == 4
    whole_curve, _ = ranks.run(2, trained, Layout(), SETTINGS, 4)[0]
    assert curve == whole_curve[2:]


def spoilt(value):
    engine, context = toy_engine(Layout(), SETTINGS)
    if context.data.rank == 1:
        with torch.no_grad():
            engine.stages[0].layers["0"].scale[0] = value
    loss = engine.accumulate(step_batches(0, 4, context), forward_step)
    return loss.loss, engine.grad_norm()


def test_nan_on_one_rank_is_seen_by_all(ranks):
    for loss, norm in ranks.run(2, spoilt, float("nan")):
        assert loss != loss
        assert norm != norm


def bf16_state():
    settings = EngineSettings(precision="bf16", weight_decay=0.2, clip_grad=0.5)
    engine, context = toy_engine(Layout(), settings)
    curve = train(engine, context, range(3))
    state = assemble(engine.state_pieces())
    used = assemble(engine.weight_pieces())
    return curve, state, used


def test_bf16_keeps_float32_main_weights_and_computes_with_their_rounding(ranks):
    curve, state, used = ranks.run(2, bf16_state)[0]
    assert {value.dtype for value in state.values()} == {torch.float32}
    for key, value in used.items():
        assert value.dtype is torch.bfloat16
        assert torch.equal(state[key].bfloat16(), value)
    reference, _ = reference_run(3)
    torch.testing.assert_close(torch.tensor(curve), torch.tensor(reference), rtol=0.05, atol=0.02)


def stepping_in_fp64():
    engine, context = toy_engine(Layout(), EngineSettings(precision="fp64"))
    engine.accumulate(step_batches(0, 4, context), forward_step)
    with pytest.raises(RuntimeError, match="there is no optimizer"):
        engine.apply(0.1)


def test_float64_has_no_optimizer_and_says_so(ranks):
    ranks.run(1, stepping_in_fp64)


def wrong_precision():
    with pytest.raises(
        ValueError, match=r"precision bf16 wants parameters in torch.bfloat16, the model has torch.float32"
    ):
        engine_of_float32_model(EngineSettings(precision="bf16"))


def engine_of_float32_model(settings):
    from core_toys.model import build_stages, weight_map

    from loong_core.device.cpu import CpuDevice
    from loong_core.engine.megatron.engine import MegatronEngine
    from loong_core.parallel.context import ParallelContext

    context = ParallelContext.build(Layout(), "cpu")
    return MegatronEngine(build_stages(context, torch.float32), weight_map(), context, CpuDevice(), settings)


def test_a_model_in_another_precision_is_refused(ranks):
    ranks.run(1, wrong_precision)


@pytest.mark.parametrize("bucket_size", [None, 200], ids=["one bucket", "several buckets"])
def test_overlapping_communication_changes_nothing_but_the_order_of_sums(ranks, bucket_size):
    overlapped = replace(SETTINGS, overlap_grad_reduce=True, overlap_param_gather=True, bucket_size=bucket_size)
    for run in ranks.run(2, trained, Layout(), overlapped, 4):
        assert_same_run(run, reference_run(4))


def uneven_data():
    engine, context = toy_engine(Layout(), SETTINGS)
    mine = [microbatch(number) for number in ([0, 1, 2] if context.data.rank == 0 else [3])]
    return engine.accumulate(mine, forward_step).loss, engine.grad_norm()


def test_data_ranks_may_bring_unlike_numbers_of_microbatches(ranks):
    expected = PlainTraining(SETTINGS).step(0, 4, None)
    for result in ranks.run(2, uneven_data):
        assert result == pytest.approx(expected, abs=1e-5)
