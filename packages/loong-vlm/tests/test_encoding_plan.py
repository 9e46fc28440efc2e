"""Who encodes which image: each rank is sent just what its tokens show, and its layers read."""

import torch
from vision_toys import QWEN3_VL, Shown, batch_of

from loong_core.parallel.context import Axis, ParallelContext
from loong_core.parallel.layout import Layout
from loong_vlm.encoding_plan import plan_encoding, shown_by_ranks
from loong_vlm.families.qwen3_vl import QWEN3_VL as FAMILY
from loong_vlm.feeding import ImageFeeding, places_of_stages

PARTS = FAMILY.parts(QWEN3_VL)
SAMPLES = [[3, Shown((1, 8, 10)), 1, Shown((1, 2, 2)), 4], [6], [Shown((1, 6, 4)), 2]]


def context_rank(rank: int, size: int) -> ParallelContext:
    axes = {"context": Axis(None, rank, size), "ring": Axis(None, rank, size)}
    return ParallelContext(Layout(context=size), torch.device("cpu"), **axes)


def test_every_rank_gets_the_features_of_its_own_tokens_in_their_order():
    batch = batch_of(SAMPLES, PARTS)
    tensor, context = 2, 2
    plans, shares = [], []
    for rank in range(tensor * context):
        shares.append(batch.share_for(context_rank(rank // tensor, context)))
        plans.append(plan_encoding(shares[-1], PARTS, rank, tensor))
    counts = [20, 1, 6]  # features of each image: squares of four patches
    first = [0, 20, 21]
    encoded = [[first[image] + each for image in route.own[0] for each in range(counts[image])] for route, _ in plans]
    assert sorted(each for own in encoded for each in own) == list(range(27))
    parcels = [
        [encoded[rank][place] for place in route.send.tolist()] for rank, (route, _) in enumerate(plans)
    ]  # features, in the order sent
    shown = []
    for rank, (route, own_rows) in enumerate(plans):
        received = []
        for sender, parcel in enumerate(parcels):
            start = sum(plans[sender][0].sent[:rank])
            received += parcel[start : start + plans[sender][0].sent[rank]]
            assert route.received[sender] == plans[sender][0].sent[rank]
        features = [received[place] for place in route.order.tolist()]
        run = -(-shares[rank].tokens.shape[0] // tensor)
        rows = [rank % tensor * run + row for row in own_rows.tolist()]
        own = shares[rank].shown[rank // tensor]
        expected = dict(zip(own.rows.tolist(), own.features.tolist(), strict=True))
        assert [expected[row] for row in rows] == features
        shown += features
    assert sorted(shown) == list(range(27))


def test_each_stage_wants_the_rows_that_its_layers_read():
    batch, layout = batch_of(SAMPLES, PARTS), Layout(pipeline=3)
    assert PARTS.projector.deep == 2
    assert places_of_stages(PARTS, layout) == [[0, 1], [2], []]
    feeding = ImageFeeding(PARTS, ParallelContext(layout, torch.device("cpu")))
    every = torch.arange(27)
    first, second = feeding.wanted(batch, feeding.context)
    assert torch.equal(first, torch.cat([3 * every, 3 * every + 1]))
    assert torch.equal(second, 3 * every + 2)
    ((_, features),) = shown_by_ranks(batch.shown, 1)
    assert torch.equal(features, every)
    assert [item.rows for item in feeding.items(batch)] == [60, 3, 18]
