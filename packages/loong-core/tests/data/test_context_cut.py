"""Context ranks share every token once, evenly, and know which of their queries see which keys."""

import dataclasses

import numpy as np
import pytest
import torch

from loong_core.data.batch import IGNORED_LABEL, PackedBatch
from loong_core.data.context_cut import chunk_sizes, cut_batch, own_shares
from loong_core.parallel.context import Axis, ParallelContext

LENGTHS = [37, 1, 64, 3, 20]


def batch_of(lengths):
    """Tokens that are their own row numbers."""
    rows = torch.arange(sum(lengths))
    return PackedBatch.from_lengths(rows, rows + 1, lengths)


def rank_of(ring, ulysses, number):
    """The context of one of `ring * ulysses` context ranks, without process groups."""
    group, place = divmod(number, ulysses)
    return dataclasses.replace(
        ParallelContext.single(),
        context=Axis(None, number, ring * ulysses),
        ring=Axis(None, group, ring),
        ulysses=Axis(None, place, ulysses),
    )


def shares(lengths, ring, ulysses):
    return [cut_batch(batch_of(lengths), rank_of(ring, ulysses, number)) for number in range(ring * ulysses)]


@pytest.mark.parametrize(("ring", "ulysses"), [(1, 4), (2, 1), (3, 1), (2, 2), (4, 1)])
def test_every_token_is_on_one_rank_with_its_label_and_position(ring, ulysses):
    whole, parts = batch_of(LENGTHS), shares(LENGTHS, ring, ulysses)
    rows = torch.cat([part.tokens for part in parts])
    assert rows.sort().values.tolist() == list(range(sum(LENGTHS)))
    assert torch.equal(torch.cat([part.labels for part in parts]), whole.labels[rows])
    assert torch.equal(torch.cat([part.position_ids for part in parts]), whole.position_ids[rows])
    held = [part.tokens.shape[0] for part in parts]
    assert max(held) - min(held) <= 1
    assert {part.total_tokens for part in parts} == {sum(LENGTHS)}


@pytest.mark.parametrize("ring", [2, 3, 4])
def test_the_steps_of_the_ring_pair_every_query_with_every_key_that_it_sees_once(ring):
    parts = shares(LENGTHS, ring, 1)
    seen = torch.zeros(sum(LENGTHS), sum(LENGTHS), dtype=torch.int)
    for rank, part in enumerate(parts):
        for number, step in enumerate(part.share.steps):
            if step.pairs is None:
                continue
            queries, keys = part.tokens, parts[(rank - number) % ring].tokens
            queries = queries if step.query_rows is None else queries[step.query_rows]
            keys = keys if step.key_rows is None else keys[step.key_rows]
            bounds = zip(step.pairs.cu_seqlens_q.tolist(), step.pairs.cu_seqlens_k.tolist(), strict=True)
            (q_start, k_start), *ends = bounds
            for q_stop, k_stop in ends:
                assert 0 < q_stop - q_start <= step.pairs.max_seqlen_q
                assert 0 < k_stop - k_start <= step.pairs.max_seqlen_k
                block = torch.ones(q_stop - q_start, k_stop - k_start, dtype=torch.int)
                block = block.tril() if step.pairs.causal else block
                seen[queries[q_start:q_stop, None], keys[None, k_start:k_stop]] += block
                q_start, k_start = q_stop, k_stop
            assert (q_start, k_start) == (queries.shape[0], keys.shape[0])
    whole = batch_of(LENGTHS)
    sequence = torch.bucketize(whole.tokens, whole.cu_seqlens[1:], right=True)
    causal = (sequence[:, None] == sequence) & (whole.tokens[:, None] >= whole.tokens)
    assert torch.equal(seen, causal.int())


def work(part):
    """Products of queries and keys of one rank of the ring."""
    total = 0.0
    for step in part.share.steps:
        if step.pairs is not None:
            products = step.pairs.cu_seqlens_q.diff().double() * step.pairs.cu_seqlens_k.diff()
            total += float(products.sum()) * (0.5 if step.pairs.causal else 1.0)
    return total


@pytest.mark.parametrize("lengths", [[4096], [3001, 100, 700, 12, 283], [2048, 2048]])
@pytest.mark.parametrize("ring", [2, 4, 8])
def test_the_ranks_of_a_ring_have_equal_work_whatever_the_lengths(lengths, ring):
    amounts = [work(part) for part in shares(lengths, ring, 1)]
    assert max(amounts) / min(amounts) < 1.02


def test_tokens_that_are_over_are_dealt_round_the_ranks():
    sizes = chunk_sizes(np.array([5, 6, 7, 1]), 2)
    assert sizes.tolist() == [[2, 1, 1, 1], [2, 2, 1, 1], [2, 2, 2, 1], [1, 0, 0, 0]]
    assert sizes.sum(1).tolist() == [5, 6, 7, 1]


def test_sequences_of_one_length_that_divides_stay_of_one_length():
    (first, second) = shares([16, 16], 2, 1)
    assert (first.uniform_length, second.uniform_length) == (8, 8)
    assert first.tokens.tolist() == [0, 1, 2, 3, 12, 13, 14, 15, 16, 17, 18, 19, 28, 29, 30, 31]
    assert shares([16, 15], 2, 1)[1].uniform_length is None
    assert shares([16, 16], 1, 2)[0].uniform_length == 16


def test_the_trained_tokens_of_the_whole_microbatch_are_known_on_every_rank():
    batch = batch_of([8, 8])
    batch.labels[:3] = IGNORED_LABEL
    assert [int(cut_batch(batch, rank_of(2, 1, number)).trained_tokens) for number in range(2)] == [13, 13]


def test_a_microbatch_smaller_than_the_ranks_is_refused():
    with pytest.raises(ValueError, match="3 tokens cannot be shared by 4 context ranks; lower"):
        shares([3], 2, 2)


def test_a_batch_of_another_kind_says_itself_how_it_is_shared():
    class Pairs:
        def share_for(self, context):
            return context.context.rank

    assert own_shares([Pairs()], rank_of(2, 1, 1)) == [1]
    with pytest.raises(TypeError, match="list cannot be shared by 2 context ranks"):
        own_shares([[1]], rank_of(2, 1, 0))
    whole = [object()]
    assert own_shares(whole, ParallelContext.single()) is whole
