"""A batch of text with images: packing, choosing images, and sharing tokens among context ranks."""

import torch

from loong_core.data.batch import PackedBatch
from loong_core.parallel.context import Axis, ParallelContext
from loong_core.parallel.layout import Layout
from loong_vlm.data.batch import Pictures, VisionBatch


def two_pictures() -> Pictures:
    grid = torch.tensor([[1, 2, 2], [2, 2, 4]])
    return Pictures(torch.arange(20.0)[:, None].expand(20, 3), grid, ("image", "video"))


def test_images_are_chosen_with_their_patches_in_the_order_given():
    chosen = two_pictures().select([1, 0])
    assert chosen.kinds == ("video", "image")
    assert chosen.patches[:, 0].tolist() == [*range(4, 20), *range(4)]
    assert two_pictures().select([]).patches.shape == (0, 3)


def test_joined_samples_keep_their_order():
    joined = Pictures.join([two_pictures().select([0]), Pictures.none(3), two_pictures().select([1])])
    assert torch.equal(joined.patches, two_pictures().patches)
    assert torch.equal(joined.grid_thw, two_pictures().grid_thw)


def test_context_ranks_together_have_each_placeholder_once_with_its_feature():
    tokens = torch.arange(100, 123)
    shown = torch.tensor([3, 4, 5, 12, 17, 18])
    batch = VisionBatch(PackedBatch.from_lengths(tokens, tokens, [10, 13]), two_pictures(), shown)
    found = {}
    for rank in range(4):
        layout = Layout(context=4, ulysses=2)
        axes = {"context": Axis(None, rank, 4), "ulysses": Axis(None, rank % 2, 2), "ring": Axis(None, rank // 2, 2)}
        share = batch.share_for(ParallelContext(layout, torch.device("cpu"), **axes, rank=rank, world_size=4))
        own = share.shown[rank]
        found |= dict(zip(own.features.tolist(), share.tokens[own.rows].tolist(), strict=True))
    assert found == {number: 100 + row for number, row in enumerate(shown.tolist())}
