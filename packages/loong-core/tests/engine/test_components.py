"""An encoder and a decoder, each with a layout of its own, train as one model on one rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from core_toys import two_parts
from core_toys.two_parts import ENCODER_MAP, build_decoder, build_encoder, microbatch
from core_toys.two_parts_training import CASES, STEP, Case, resumed_elsewhere, run_case
from torch import Tensor

from loong_core.data.batch import IGNORED_LABEL
from loong_core.engine.components.feeding import Item, component_contexts, feeding_faults
from loong_core.engine.components.routes import deal_out, find_route
from loong_core.errors import ConfigError
from loong_core.nn.token_features import TokenFeatures
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout


class Plain:
    """Both parts on one rank, in plain PyTorch."""

    def __init__(self, dtype: torch.dtype) -> None:
        context = ParallelContext.single()
        self.encoder, (self.decoder,) = build_encoder(context, dtype), build_decoder(context, dtype)

    def loss(self, step: int) -> Tensor:
        """Mean over a step's tokens."""
        total, tokens = torch.zeros((), dtype=torch.float64), 0
        for number in range(step * STEP, (step + 1) * STEP):
            batch = microbatch(number)
            patches = torch.cat([*batch.pictures, torch.zeros(0, two_parts.PATCH, dtype=torch.float64)])
            features = self.encoder(patches.to(next(self.encoder.parameters()).dtype))
            total = total + self.decoder(batch.text, None, TokenFeatures(batch.places, features)).sum()
            tokens += int((batch.text.labels != IGNORED_LABEL).sum())
        return total / tokens


@pytest.fixture(scope="module")
def exact() -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by canonical name on one rank, in float64."""
    plain, found = Plain(torch.float64), {}
    loss = plain.loss(0)
    loss.backward()
    for module, names in ((plain.encoder, ENCODER_MAP), (plain.decoder, two_parts.DECODER_MAP)):
        for parameter, placement in names.placements(module, ParallelContext.single()):
            assert parameter.grad is not None
            for piece, part in zip(placement.pieces, placement.from_local(parameter.grad), strict=True):
                whole = found.setdefault(piece.name, torch.zeros(piece.global_shape, dtype=torch.float64))
                whole[piece.slices] = part
    return loss.item(), found


@pytest.fixture(scope="module")
def single(ranks):
    """The engine's own outcome on one rank."""
    (outcome,) = ranks.run(1, run_case, Case(1, Layout()), 4)
    return outcome


@pytest.mark.parametrize("name", CASES)
def test_loss_gradients_norm_and_updates_are_those_of_one_rank(name, exact, single, ranks):
    expected_loss, expected = exact
    expected_norm = torch.stack([value.square().sum() for value in expected.values()]).sum().sqrt().item()
    *_, expected_curve, expected_state, expected_held_out = single
    for loss, norm, gradients, curve, state, held_out in ranks.run(CASES[name].ranks, run_case, CASES[name], 4):
        assert loss == pytest.approx(expected_loss, rel=1e-12)
        assert norm == pytest.approx(expected_norm, rel=1e-12)
        assert gradients.keys() == {f"gradient/{key}" for key in expected}
        for key, value in expected.items():
            torch.testing.assert_close(gradients[f"gradient/{key}"], value, rtol=0, atol=1e-12 * value.abs().max())
        torch.testing.assert_close(torch.tensor(curve), torch.tensor(expected_curve), rtol=2e-5, atol=0)
        for key, value in expected_state.items():
            torch.testing.assert_close(state[key], value, rtol=1e-3, atol=1e-5)
        assert held_out == pytest.approx(expected_held_out, rel=1e-5)


def test_a_frozen_encoder_feeds_and_stays(ranks, exact):
    for loss, _, gradients, _, state, _ in ranks.run(
        4, run_case, CASES["tensor 2, pipeline 2, fed by data 4"], 2, True
    ):
        assert loss == pytest.approx(exact[0], rel=1e-12)
        assert all(key.startswith("gradient/decoder.") for key in gradients)
        assert sum(key.startswith("weight/encoder.") for key in state) == 9
        assert not any(key.startswith("exp_avg/encoder.") for key in state)


def test_a_checkpoint_of_components_resumes_under_other_layouts(ranks, single, tmp_path):
    layouts = [CASES["tensor 2, pipeline 2, fed by tensor 2, data 2"], CASES["tensor 2, data 2, fed by fsdp on 4"]]
    (curve, *_) = ranks.run(4, resumed_elsewhere, tmp_path, layouts)
    torch.testing.assert_close(torch.tensor(curve), torch.tensor(single[3]), rtol=2e-5, atol=0)


def test_each_feature_reaches_who_wants_it_from_who_encoded_it():
    items = [[Item(3, 9.0), Item(2, 1.0)], [], [Item(4, 4.0)]]
    wanted = [[torch.tensor([4, 0]), torch.arange(5)], [torch.arange(0)] * 2, [torch.arange(0), torch.tensor([3, 3])]]
    routes = [find_route(items, wanted, rank, 4, 2) for rank in range(4)]  # two lanes of two ranks
    assert [route.own for route in routes] == [[(0,), (), ()]] * 2 + [[(1,), (), (0,)]] * 2
    assert [route.rows for route in routes] == [3, 3, 6, 6]
    features = [torch.tensor([[0, 1], [2, -1], [3, 4, 100], [101, 102, 103]][rank]) for rank in range(4)]  # each's run
    sent = [list(features[rank][route.send].split(route.sent)) for rank, route in enumerate(routes)]
    for rank, expected in enumerate([[4, 0], [0, 1, 2, 3, 4, 103, 103], [], []]):
        arrived = torch.cat([sent[source][rank] for source in range(4)])
        assert routes[rank].received == [len(sent[source][rank]) for source in range(4)]
        assert arrived[routes[rank].order].tolist() == expected


def test_items_are_dealt_out_evenly_by_cost():
    lanes = deal_out([5.0, 4.0, 3.0, 3.0, 3.0], 2)
    loads = [sum(cost for cost, lane in zip([5, 4, 3, 3, 3], lanes, strict=True) if lane == each) for each in (0, 1)]
    assert loads == [8, 10]


def test_layouts_that_cannot_feed_each_other_are_told_with_the_component():
    (fault,) = feeding_faults(Layout(tensor=4), Layout(tensor=2, context=3), "vision")
    assert str(fault).startswith("vision.layout.tensor: is 4, which does not divide the 6 ranks")
    assert "the nearest that does is 3" in str(fault)
    (fault,) = feeding_faults(Layout(pipeline=2), Layout(), "vision")
    assert "vision.layout.pipeline: is 2" in str(fault)


def contexts_refused() -> str:
    try:
        component_contexts({"decoder": Layout(), "encoder": Layout(tensor=2)}, "cpu")
    except ConfigError as error:
        return str(error)
    finally:
        dist.barrier()
    return ""


def test_contexts_of_layouts_that_cannot_feed_are_refused_on_every_rank(ranks):
    assert all("encoder.layout.tensor: is 2" in said for said in ranks.run(2, contexts_refused))
