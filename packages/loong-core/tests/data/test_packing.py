"""Packing: nothing is lost, nothing is said twice, little room is left, and the same comes out for everyone."""

import random

import numpy as np
import pytest
import torch

from loong_core.data.batch import IGNORED_LABEL
from loong_core.data.blend_schedule import BlendPoint, ScheduledBlend
from loong_core.data.marks import mark, unmark
from loong_core.data.packed_samples import HeldOutSamples, PackedSamples
from loong_core.data.packing import SecondBudget, best_fit, pack_window, places
from loong_core.data.sequences import Sequences
from loong_core.data.stream import Stream
from loong_core.data.token_store import TokenStore
from loong_core.errors import UserError


def store_of(lengths, seed=0, trained=None):
    """Samples of these lengths, every token an id of its own; by default the second half of each is trained on."""
    documents, first = [], 0
    for length in lengths:
        ids = np.arange(first, first + length)
        learnt = np.arange(length) >= length // 2 if trained is None else np.arange(length) >= trained
        documents.append(mark(ids, learnt).tolist())
        first += length
    return TokenStore.from_documents(documents, 1 << 20)


def everything(source, draws=None):
    """The trained labels of an epoch, in order of id."""
    labels = np.concatenate([source.sample(draw).labels for draw in range(draws or source.per_epoch)])
    return np.sort(labels[labels != IGNORED_LABEL]).tolist()


def trained_ids(store):
    found = []
    for index in range(len(store)):
        ids, trained = unmark(store.document(index))
        found += ids[1:][trained[1:]].tolist()
    return found


def test_best_fit_takes_each_sample_once_and_fills_no_sequence_over():
    random.seed(0)
    lengths = [random.randint(1, 100) for _ in range(2000)]
    sequences = best_fit(lengths, 100)
    assert sorted(index for sequence in sequences for index in sequence) == list(range(2000))
    assert max(sum(lengths[index] for index in sequence) for sequence in sequences) <= 100


def test_best_fit_puts_each_sample_where_least_room_is_left():
    assert best_fit([6, 3, 4, 5, 2], 10) == [[0, 2], [1, 3, 4]]


def test_best_fit_keeps_to_a_second_budget():
    lengths, patches = [6, 3, 4, 5, 2], [0, 9, 0, 0, 9]
    assert best_fit(lengths, 10, SecondBudget(patches, 9)) == [[0, 2], [1, 3], [4]]
    assert best_fit(lengths, 10, SecondBudget(patches, 18)) == best_fit(lengths, 10)
    with pytest.raises(ValueError, match="takes 9 of a second budget of 8"):
        best_fit(lengths, 10, SecondBudget(patches, 8))


def test_best_fit_finds_a_perfect_packing_of_halves_and_quarters():
    assert len(best_fit([32] * 10 + [16] * 10 + [64] * 10, 64)) == 10 + 5 + 3


@pytest.mark.parametrize("length", [0, 11])
def test_best_fit_refuses_what_cannot_be_packed(length):
    with pytest.raises(ValueError, match=f"sample 1 has {length} tokens, a sequence holds 1 to 10"):
        best_fit([5, length], 10)


def test_a_stream_of_windows_loses_nothing_and_waits_with_no_more_than_a_window():
    random.seed(1)
    lengths = [random.randint(40, 90) for _ in range(3000)]
    given, waiting, most = [], [], 0
    for first in range(0, 3000, 100):
        fresh = list(range(first, first + 100))
        sequences, waiting = pack_window(waiting, fresh, lambda index: lengths[index], 100, last=first == 2900)
        given += sequences
        most = max(most, len(waiting))
    assert sorted(index for sequence in given for index in sequence) == list(range(3000))
    assert most <= 100


@pytest.mark.parametrize(
    ("policy", "expected"),
    [("truncate", [(0, 10)]), ("split", [(0, 10), (10, 20), (20, 25)]), ("drop", []), ("stop", [])],
)
def test_a_long_sample_is_placed_as_asked_for(policy, expected):
    assert places(25, 10, policy) == expected
    assert places(10, 10, policy) == [(0, 10)]


@pytest.mark.parametrize("packing", [True, False])
def test_an_epoch_trains_on_each_trained_token_once(packing):
    random.seed(2)
    store = store_of([random.randint(2, 60) for _ in range(500)])
    source = PackedSamples(store, 64, packing=packing, window=100)
    assert everything(source) == trained_ids(store)


def test_splitting_a_long_sample_trains_on_each_of_its_tokens_once():
    store = store_of([300, 20, 77, 65, 64], trained=0)
    source = PackedSamples(store, 64, long_samples="split")
    assert everything(source) == trained_ids(store)
    assert (source.count.split, source.count.dropped, source.count.lost_tokens) == (2, 0, 0)


def test_truncating_keeps_the_beginning_and_counts_what_is_lost():
    source = PackedSamples(store_of([100, 20], trained=0), 64)
    assert everything(source) == [*range(1, 65), *range(101, 120)]
    assert (source.count.truncated, source.count.lost_tokens) == (1, 35)


def test_dropping_leaves_long_samples_out_and_counts_them():
    source = PackedSamples(store_of([100, 20]), 64, long_samples="drop")
    assert everything(source) == list(range(110, 120))
    assert (source.count.dropped, source.count.lost_tokens) == (1, 99)


def test_a_part_without_a_trained_token_is_left_out():
    source = PackedSamples(store_of([200], trained=150), 64, long_samples="split")
    assert source.per_epoch == 2
    assert everything(source) == list(range(150, 200))


def test_positions_restart_and_attention_stays_within_each_sample():
    source = PackedSamples(store_of([11, 21, 31]), 64)
    stream = Stream([source], global_batch_size=1, micro_batch_size=1)
    (batch,) = stream.next_step()
    lengths = batch.cu_seqlens.diff().tolist()
    assert (sorted(lengths[:3]), lengths[3]) == ([10, 20, 30], 4)
    assert batch.position_ids.tolist() == [place for length in lengths for place in range(length)]
    assert (batch.labels[-4:] == IGNORED_LABEL).all()
    assert sorted(batch.tokens[batch.cu_seqlens[:3].long()].tolist()) == [0, 11, 32]


def test_a_label_is_the_token_after_its_input():
    sample = PackedSamples(store_of([11, 21, 31]), 64).sample(0)
    known = sample.labels != IGNORED_LABEL
    assert (sample.labels[known] == sample.tokens[known] + 1).all()


def test_each_sample_is_filled_up_to_the_multiple_asked_for():
    store = store_of([6, 10, 15])
    source = PackedSamples(store, 32, multiple=8)
    assert everything(source) == trained_ids(store)
    sample = source.sample(0)
    assert all(length % 8 == 0 for length in sample.lengths)
    assert sum(sample.lengths) == 32


def test_a_sequence_length_that_the_multiple_does_not_divide_is_refused():
    with pytest.raises(UserError, match=r"data\.sequence_length 30 is no multiple of 8"):
        PackedSamples(store_of([6]), 30, multiple=8)


def test_epochs_hold_the_same_sequences_in_other_orders():
    source = PackedSamples(store_of([30] * 40), 64)
    first = [source.sample(draw).tokens.tolist() for draw in range(source.per_epoch)]
    second = [source.sample(draw + source.per_epoch).tokens.tolist() for draw in range(source.per_epoch)]
    assert first != second
    assert sorted(first) == sorted(second)


def test_the_seed_decides_which_samples_share_a_sequence():
    store = store_of([13] * 64)
    assert everything(PackedSamples(store, 64, seed=1)) == everything(PackedSamples(store, 64, seed=2))
    one, other, same = (PackedSamples(store, 64, seed=seed).sequence(0).tokens.tolist() for seed in (1, 2, 1))
    assert one != other
    assert one == same


def test_two_data_ranks_together_see_what_one_sees():
    store = store_of([random.Random(3).randint(2, 40) for _ in range(300)])

    def steps(rank, size, count):
        stream = Stream(
            [PackedSamples(store, 64)], global_batch_size=4, micro_batch_size=1, data_rank=rank, data_size=size
        )
        return [[batch.tokens.tolist() for batch in stream.next_step()] for _ in range(count)]

    alone, first, second = steps(0, 1, 3), steps(0, 2, 3), steps(1, 2, 3)
    assert [sorted(step) for step in alone] == [sorted(a + b) for a, b in zip(first, second, strict=True)]


def test_a_stream_resumes_where_it_stopped_on_another_number_of_ranks():
    store = store_of([random.Random(4).randint(2, 40) for _ in range(300)])
    whole = Stream([PackedSamples(store, 64)], global_batch_size=4, micro_batch_size=2)
    for _ in range(2):
        whole.next_step()
    state = whole.state_dict()
    expected = torch.cat([batch.tokens for batch in whole.next_step()])
    halves = []
    for rank in range(2):
        stream = Stream(
            [PackedSamples(store, 64)], global_batch_size=4, micro_batch_size=2, data_rank=rank, data_size=2
        )
        stream.load_state_dict(state)
        halves += [batch.tokens for batch in stream.next_step()]
    assert torch.equal(torch.cat(halves), expected)


def test_a_checkpoint_of_another_packing_is_refused():
    store = store_of([20] * 20)
    state = Stream([PackedSamples(store, 64)], global_batch_size=1, micro_batch_size=1).state_dict()
    other = Stream([PackedSamples(store, 64, packing=False)], global_batch_size=1, micro_batch_size=1)
    with pytest.raises(UserError, match="not those of the checkpoint"):
        other.load_state_dict(state)


def test_held_out_samples_count_every_trained_token_on_any_number_of_ranks():
    store = store_of([random.Random(5).randint(2, 150) for _ in range(50)])
    held_out = HeldOutSamples([store], 64)
    assert held_out.predicted_tokens == len(trained_ids(store))
    for size in (1, 2, 3):
        shares = [held_out.microbatches(micro_batch_size=2, data_rank=rank, data_size=size) for rank in range(size)]
        assert len({len(share) for share in shares}) == 1
        labels = torch.cat([batch.labels for share in shares for batch in share])
        assert sorted(labels[labels != IGNORED_LABEL].tolist()) == trained_ids(store)


def test_documents_and_packed_samples_are_blended_by_a_schedule_and_resumed():
    documents = TokenStore.from_documents([list(range(1, 2000))], 1 << 20, "documents")
    talk = store_of([random.Random(6).randint(2, 40) for _ in range(300)])

    def stream():
        sources = [Sequences(documents, 64, source=0), PackedSamples(talk, 64, source=1)]
        schedule = ScheduledBlend([BlendPoint(0, (1.0, 0.0)), BlendPoint(100, (0.0, 1.0))])
        return Stream(sources, schedule, global_batch_size=10, micro_batch_size=1)

    whole = stream()
    steps = [whole.next_step() for _ in range(12)]
    from_documents = [
        sum(bool((batch.tokens < 2000).all() and (batch.tokens > 0).all()) for batch in step) for step in steps
    ]
    assert from_documents[0] >= 9
    assert from_documents[5] in (4, 5)
    assert from_documents[-2:] == [0, 0]
    resumed = stream()
    resumed.load_state_dict({**whole.state_dict(), "consumed_samples": 50})
    assert [batch.tokens.tolist() for batch in resumed.next_step()] == [batch.tokens.tolist() for batch in steps[5]]
