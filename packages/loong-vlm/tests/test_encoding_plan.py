"""Who encodes which image: work is even, and each rank is sent just what its tokens show."""

import torch
from vision_toys import QWEN3_VL, Shown, batch_of

from loong_core.parallel.context import Axis, ParallelContext
from loong_core.parallel.layout import Layout
from loong_vlm.encoding_plan import plan_encoding, share_out
from loong_vlm.families.qwen3_vl import QWEN3_VL as FAMILY

PARTS = FAMILY.parts(QWEN3_VL)


def test_dear_images_come_first_to_the_rank_with_least_to_do():
    assert share_out([1, 5, 4, 2], 2) == [0, 0, 1, 1]
    assert share_out([], 3) == []


def test_every_rank_gets_the_features_of_its_own_tokens_in_their_order():
    batch = batch_of([[3, Shown((1, 8, 10)), 1, Shown((1, 2, 2)), 4], [6], [Shown((1, 6, 4)), 2]], PARTS)
    tensor, context = 2, 2
    plans, shares = [], []
    for rank in range(tensor * context):
        axes = {"context": Axis(None, rank // tensor, 2), "ring": Axis(None, rank // tensor, 2)}
        own = ParallelContext(Layout(context=2), torch.device("cpu"), **axes)
        shares.append(batch.share_for(own))
        plans.append(plan_encoding(shares[-1], PARTS, rank, tensor))
    counts = [20, 1, 6]  # features of each image: squares of four patches
    first = [0, 20, 21]
    encoded = [[first[image] + each for image in plan.own for each in range(counts[image])] for plan in plans]
    assert sorted(each for own in encoded for each in own) == list(range(27))
    parcels = [
        [encoded[rank][place] for place in plan.send.tolist()] for rank, plan in enumerate(plans)
    ]  # features, in the order sent
    shown = []
    for rank, plan in enumerate(plans):
        received = []
        for sender, parcel in enumerate(parcels):
            start = sum(plans[sender].sent[:rank])
            received += parcel[start : start + plans[sender].sent[rank]]
            assert plan.received[sender] == plans[sender].sent[rank]
        features = [received[place] for place in plan.order.tolist()]
        run = -(-shares[rank].tokens.shape[0] // tensor)
        rows = [rank % tensor * run + row for row in plan.rows.tolist()]
        own = shares[rank].shown[rank // tensor]
        expected = dict(zip(own.rows.tolist(), own.features.tolist(), strict=True))
        assert [expected[row] for row in rows] == features
        shown += features
    assert sorted(shown) == list(range(27))
