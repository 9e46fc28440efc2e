from itertools import pairwise

import numpy as np
import pytest
from data_toys import counting_store

from loong_core.data.batch import IGNORED_LABEL
from loong_core.data.sequences import Sequences, pack
from loong_core.data.shuffle import permutation
from loong_core.data.token_store import TokenStore
from loong_core.errors import UserError


def epoch_of(sequences, epoch=0):
    first = epoch * sequences.per_epoch
    return [sequences.sample(first + index) for index in range(sequences.per_epoch)]


LENGTHS = [3, 17, 1, 8, 40, 2, 5, 11, 1, 12]  # 100 tokens


def test_every_token_is_an_input_once_an_epoch_up_to_the_tail():
    store = counting_store(LENGTHS)
    for epoch in range(3):
        samples = epoch_of(Sequences(store, 8), epoch)
        tokens = np.concatenate([sample.tokens for sample in samples])
        assert len(tokens) == len(set(tokens.tolist())) == 96


def test_labels_are_the_next_tokens_of_the_same_document():
    store = counting_store(LENGTHS)
    ends = set((np.cumsum(LENGTHS) - 1).tolist())
    for sample in epoch_of(Sequences(store, 8)):
        for token, label in zip(sample.tokens.tolist(), sample.labels.tolist()):
            assert label == (IGNORED_LABEL if token in ends else token + 1)


def test_sequences_of_a_sample_are_its_pieces_of_documents():
    store = counting_store(LENGTHS)
    ends = set((np.cumsum(LENGTHS) - 1).tolist())
    for sample in epoch_of(Sequences(store, 8)):
        assert sum(sample.lengths) == 8
        last = np.cumsum(sample.lengths) - 1
        inner_ends = [place for place in range(7) if int(sample.tokens[place]) in ends]
        assert inner_ends == last[:-1].tolist()


def test_attending_across_documents_makes_one_sequence_with_every_label():
    store = counting_store(LENGTHS)
    across = epoch_of(Sequences(store, 8, attend_across_documents=True))
    apart = epoch_of(Sequences(store, 8))
    for one, other in zip(across, apart, strict=True):
        assert one.lengths == [8]
        assert (one.tokens == other.tokens).all()
        assert (one.labels[:-1] == one.tokens[1:]).all()
        assert IGNORED_LABEL not in one.labels


def test_epochs_seeds_and_sources_have_orders_of_their_own():
    store = counting_store(LENGTHS)

    def order(**key):
        return np.concatenate([sample.tokens for sample in epoch_of(Sequences(store, 8, **key))]).tolist()

    assert order(seed=1) == order(seed=1)
    assert len({tuple(order(seed=seed, source=source)) for seed in (1, 2) for source in (0, 1)}) == 4
    sequences = Sequences(store, 8, seed=1)
    assert [epoch_of(sequences, 1)[0].tokens.tolist()] != [epoch_of(sequences, 0)[0].tokens.tolist()]


def test_any_sample_can_be_read_without_the_others():
    store = counting_store(LENGTHS)
    in_order = Sequences(store, 8)
    wanted = [in_order.sample(draw).tokens.tolist() for draw in range(30)]
    for draw in (29, 3, 17, 0):
        assert Sequences(store, 8).sample(draw).tokens.tolist() == wanted[draw]


def test_too_few_tokens_for_a_sample_is_told_with_numbers():
    with pytest.raises(UserError, match=r"holds 8 tokens in 2 documents, a sequence of 8 needs 9"):
        Sequences(counting_store([3, 5]), 8)


def test_packed_samples_have_positions_that_restart_with_each_sequence():
    batch = pack(epoch_of(Sequences(counting_store(LENGTHS), 8))[:3])
    starts = batch.cu_seqlens.tolist()
    assert starts[-1] == batch.tokens.numel() == 24
    for start, end in pairwise(starts):
        assert batch.position_ids[start:end].tolist() == list(range(end - start))
    assert batch.max_seqlen == max(end - start for start, end in pairwise(starts))


def test_samples_of_one_sequence_keep_their_uniform_length():
    samples = epoch_of(Sequences(counting_store(LENGTHS), 8, attend_across_documents=True))[:2]
    assert pack(samples).uniform_length == 8


def test_a_permutation_is_decided_by_its_key_alone():
    assert permutation(8, 1, 2).tolist() == permutation(8, 1, 2).tolist()
    assert sorted(permutation(1000, 5).tolist()) == list(range(1000))
    assert permutation(1000, 1, 2).tolist() != permutation(1000, 2, 1).tolist()
    assert permutation(6, 7, 0, 3).tolist() == [
        3,
        0,
        4,
        2,
        1,
        5,
    ]  # whoever changes this breaks every checkpoint's data order


def test_a_permutation_prefers_no_place():
    places = np.array([permutation(16, seed) for seed in range(2000)])
    counts = np.array([np.bincount(places[:, place], minlength=16) for place in range(16)])
    assert abs(counts - 125).max() < 60  # 125 expected, standard deviation 11


def test_a_store_with_single_token_documents_makes_no_label_of_them():
    store = TokenStore.from_documents([[1], [2], [3]], 10)
    (sample,) = epoch_of(Sequences(store, 2))
    assert sample.labels.tolist() == [IGNORED_LABEL] * 2
    assert sample.lengths == [1, 1]
