"""The choices that a run keeps are the same under any layout, and a run that goes on keeps only its own."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from loong_core.data.batch import PackedBatch
from loong_core.errors import UserError
from loong_core.nn.moe.config import RouterConfig
from loong_core.nn.moe.router import Router
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_core.train.comparison import ChoiceDifference, compare_choices
from loong_core.train.router_record import RouterRecord, kept_steps, read_choices

HIDDEN, LENGTHS = 8, ([6, 7], [13], [4, 5, 4], [9, 4])
"""Lengths of the sequences of each microbatch of a step: 13 tokens each, of which tensor ranks fill up the last."""


class OneLayer(nn.Module):
    """A router that looks at each token's number alone."""

    def __init__(self, context, shift):
        super().__init__()
        self.parallel = context
        self.router = Router(HIDDEN, RouterConfig(6, 2), context)
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(100, HIDDEN, generator=generator)
        self.router.weight.data.normal_(generator=generator)
        self.shift = shift

    def forward(self, tokens):
        """Route this tensor rank's run of the tokens."""
        axis = self.parallel.tensor
        length = -(-tokens.shape[0] // axis.size)
        own = tokens[axis.rank * length : (axis.rank + 1) * length]
        x = self.table[torch.cat([own, own.new_zeros(length - own.shape[0])])]
        return self.router(x + self.shift)


def microbatches(step, context):
    """This data rank's, whose tokens are numbered through the step."""
    batches = [
        PackedBatch.from_lengths(torch.arange(13) + (13 * number + step) % 80, torch.arange(13), lengths)
        for number, lengths in enumerate(LENGTHS)
    ]
    return batches[context.data.rank :: context.data.size]


def keep(folder, layout, steps, *, after=0, every=1, shift=0.0):
    """What a run keeps, seen from one rank."""
    context = ParallelContext.single() if layout is None else ParallelContext.build(layout, "cpu")
    module = OneLayer(context, shift)
    record = RouterRecord(folder, every, SimpleNamespace(stages=[module]), context, after=after)
    for step in steps:
        own = microbatches(step, context)
        with record.of(step, own):
            for batch in own:
                module(batch.tokens)


@pytest.mark.parametrize(("size", "layout"), [(4, Layout(tensor=2)), (2, Layout())], ids=["tensor x data", "data"])
def test_what_ranks_keep_is_what_one_rank_keeps(size, layout, ranks, tmp_path):
    keep(tmp_path / "one", None, [1, 2])
    ranks.run(size, keep, tmp_path / "many", layout, [1, 2])
    choices = 2 * 13 * 4 * 2
    assert compare_choices(tmp_path / "many", tmp_path / "one") == ChoiceDifference(2, 0, choices, None)
    one = read_choices(tmp_path / "one" / "step-00000001")
    assert sorted(one) == [(number, "router") for number in range(4)]
    assert one[3, "router"][0].tolist() == list(range(13))


def test_choices_that_differ_are_counted_with_the_first_step(tmp_path):
    keep(tmp_path / "one", None, [1, 2, 3])
    keep(tmp_path / "other", None, [1])
    keep(tmp_path / "other", None, [2, 3], after=1, shift=1.0)
    found = compare_choices(tmp_path / "other", tmp_path / "one")
    assert (found.steps, found.total, found.first_step) == (3, 3 * 13 * 4 * 2, 2)
    assert 0 < found.different < found.total


def test_a_run_that_goes_on_drops_the_choices_of_steps_that_it_takes_anew(tmp_path):
    keep(tmp_path, None, [1, 2, 3, 4], every=2)
    assert list(kept_steps(tmp_path)) == [2, 4]
    keep(tmp_path, None, [], after=3)
    assert list(kept_steps(tmp_path)) == [2]


def test_choices_of_other_tokens_are_refused(tmp_path):
    keep(tmp_path / "one", None, [1])
    keep(tmp_path / "other", None, [1])
    (kept,) = kept_steps(tmp_path / "other").values()
    file = kept / "rank-0.safetensors"
    file.write_bytes(file.read_bytes().replace(b'"3/router"', b'"4/router"').replace(b'"rows/3"', b'"rows/4"'))
    with pytest.raises(UserError, match="other tokens or layers"):
        compare_choices(tmp_path / "one", tmp_path / "other")


def test_a_model_without_routers_is_told(tmp_path):
    dense = SimpleNamespace(stages=[nn.Linear(2, 2)])
    with pytest.raises(UserError, match="router_choices_every would be ignored"):
        RouterRecord(tmp_path, 1, dense, ParallelContext.single(), after=0)
    RouterRecord(tmp_path, None, dense, ParallelContext.single(), after=0)
