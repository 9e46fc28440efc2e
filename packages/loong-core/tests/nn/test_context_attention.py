"""Attention shared by context ranks is the attention of one rank, forward and backward: ring, Ulysses and mixed."""

import pytest
import torch

from loong_core.data.batch import PackedBatch
from loong_core.data.context_cut import cut_batch
from loong_core.nn.context_attention import exchange_for_heads, exchange_for_tokens, ring_attention
from loong_core.parallel.context import ParallelContext
from loong_core.parallel.layout import Layout
from loong_kernels import packed_attention

LAYOUTS = {
    "ring of 2": (2, Layout(context=2)),
    "ring of 3": (3, Layout(context=3)),
    "ring of 4": (4, Layout(context=4)),
    "Ulysses 2": (2, Layout(context=2, ulysses=2)),
    "Ulysses 4": (4, Layout(context=4, ulysses=4)),
    "mixed, 2 x 2": (4, Layout(context=4, ulysses=2)),
}
LENGTHS = {"packed": [11, 1, 26, 3], "one length": [16, 16], "one sequence": [29]}


def inputs(lengths, kv_heads, dtype):
    """Queries, keys, values and the output's gradient of all tokens, and the batch whose tokens are row numbers."""
    generator = torch.Generator().manual_seed(3)
    tokens = sum(lengths)
    drawn = [torch.randn(tokens, heads, 8, generator=generator).to(dtype) for heads in (4, kv_heads, kv_heads, 4)]
    return (*drawn, PackedBatch.from_lengths(torch.arange(tokens), torch.arange(tokens), lengths))


def alone(lengths, kv_heads, dtype):
    """Output, then gradients of queries, keys and values, of one rank."""
    *tensors, upstream, batch = inputs(lengths, kv_heads, dtype)
    q, k, v = (each.requires_grad_() for each in tensors)
    out = packed_attention(q, k, v, batch.cu_seqlens, batch.max_seqlen, scale=0.4)
    return (out.detach(), *torch.autograd.grad(out, (q, k, v), upstream))


def shared(layout, lengths, kv_heads, dtype):
    """This rank's rows, then as `alone`, of its own tokens."""
    context = ParallelContext.build(layout, "cpu")
    *tensors, upstream, whole = inputs(lengths, kv_heads, dtype)
    batch = cut_batch(whole, context)
    rows, share = batch.tokens, batch.share
    leaves = [each[rows].requires_grad_() for each in tensors]
    q, k, v = exchange_for_heads(*leaves, context.ulysses, share)
    if context.ring.size > 1:
        mixed = ring_attention(q, k, v, context.ring, share, 0.4)
    else:
        mixed = packed_attention(q, k, v, batch.cu_seqlens, batch.max_seqlen, scale=0.4)
    out = exchange_for_tokens(mixed, context.ulysses, share)
    return (rows, out.detach(), *torch.autograd.grad(out, leaves, upstream[rows]))


def compare(expected, parts, **bounds):
    covered = torch.zeros(expected[0].shape[0], dtype=torch.int)
    for rows, *found in parts:
        covered[rows] += 1
        for part, whole in zip(found, expected, strict=True):
            assert part.dtype == whole.dtype
            torch.testing.assert_close(part, whole[rows], **bounds)
    assert bool((covered == 1).all())


@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS.keys())
@pytest.mark.parametrize(("world_size", "layout"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_output_and_gradients_equal_one_rank(world_size, layout, lengths, ranks):
    parts = ranks.run(world_size, shared, layout, lengths, 2, torch.float64)
    compare(alone(lengths, 2, torch.float64), parts, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["Ulysses 4", "mixed, 2 x 2", "ring of 2"])
def test_one_key_value_head_goes_to_every_rank_that_reads_it(name, ranks):
    world_size, layout = LAYOUTS[name]
    parts = ranks.run(world_size, shared, layout, LENGTHS["packed"], 1, torch.float64)
    compare(alone(LENGTHS["packed"], 1, torch.float64), parts, rtol=1e-12, atol=1e-13)


def test_in_bfloat16_the_parts_are_joined_in_float32(ranks):
    expected = alone(LENGTHS["one sequence"], 2, torch.bfloat16)
    parts = ranks.run(4, shared, Layout(context=4), LENGTHS["one sequence"], 2, torch.bfloat16)
    compare(expected, parts, rtol=2e-2, atol=2e-2)
