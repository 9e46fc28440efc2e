from collections import Counter

import numpy as np
import pytest
from data_toys import counting_store

from loong_core.data.blend import Blend
from loong_core.data.sequences import Sequences
from loong_core.data.stream import Stream
from loong_core.data.token_store import TokenStore
from loong_core.errors import UserError

LENGTHS = [13, 37, 21, 9, 50, 5, 31, 15, 11, 65]  # 257 tokens: 64 samples of 4


def stream(rank=0, size=1, shares=None, stores=None, **sizes):
    stores = stores or [counting_store(LENGTHS)]
    sources = [Sequences(store, 4, seed=3, source=number) for number, store in enumerate(stores)]
    sizes = {"global_batch_size": 8, "micro_batch_size": 2} | sizes
    return Stream(sources, shares, data_rank=rank, data_size=size, **sizes)


def tokens(step):
    return [batch.tokens.tolist() for batch in step]


def rows(steps):
    return [batch.tokens[start : start + 4].tolist() for batch in steps for start in range(0, len(batch.tokens), 4)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_union_of_all_ranks_is_the_same_whatever_their_number(size):
    alone = stream()
    parts = [stream(rank, size) for rank in range(size)]
    for _ in range(20):
        wanted = sorted(rows(alone.next_step()))
        assert sorted(row for part in parts for row in rows(part.next_step())) == wanted


def test_ranks_have_the_same_number_of_equally_long_microbatches():
    for rank in range(4):
        step = stream(rank, 4).next_step()
        assert [len(batch.tokens) for batch in step] == [8]


def test_an_epoch_holds_every_sample_once():
    whole = stream()
    assert (whole.samples_per_epoch, whole.steps_per_epoch) == (64, 8)
    for _ in range(3):
        seen = [token for _ in range(8) for batch in whole.next_step() for token in batch.tokens.tolist()]
        assert len(set(seen)) == len(seen) == 256


def test_a_resumed_stream_continues_exactly_on_another_number_of_ranks():
    left_alone = stream()
    for _ in range(11):
        left_alone.next_step()
    state = left_alone.state_dict()
    resumed = [stream(rank, 2) for rank in range(2)]
    for part in resumed:
        part.load_state_dict(state)
    for _ in range(10):
        wanted = sorted(rows(left_alone.next_step()))
        assert sorted(row for part in resumed for row in rows(part.next_step())) == wanted
    assert resumed[1].state_dict() == left_alone.state_dict()


def test_a_checkpoint_of_other_data_is_refused():
    state = stream().state_dict()
    other = stream(stores=[counting_store(LENGTHS[::-1])])
    with pytest.raises(UserError, match=r"not those of the checkpoint \(0 samples consumed\)"):
        other.load_state_dict(state)


def test_epochs_become_steps_without_a_gap_between_them():
    whole = stream(global_batch_size=24)
    assert whole.steps_per_epoch == 2
    assert [whole.steps_for(epochs) for epochs in (0.1, 1, 2, 3)] == [1, 2, 5, 8]
    for _ in range(8):
        whole.next_step()
    assert whole.epoch == 3.0


def test_too_few_samples_for_a_step_are_told_with_numbers():
    message = r"makes 64 samples of 4 tokens, fewer than train\.global_batch_size 128"
    with pytest.raises(UserError, match=message):
        stream(global_batch_size=128)


def test_a_global_batch_that_ranks_do_not_divide_is_told_with_numbers():
    message = r"global_batch_size 8 is not a multiple of train\.micro_batch_size 2 x 3 data ranks = 6"
    with pytest.raises(UserError, match=message):
        stream(0, 3)


def test_an_id_beyond_the_embedding_is_told_with_numbers():
    with pytest.raises(UserError, match=r"holds token id \d+, but the model's vocab_size is 5"):
        stream(vocab_size=5).next_step()


def test_a_blend_keeps_its_proportions_at_every_moment():
    blend = Blend([0.5, 0.3, 0.2])
    counts: Counter[int] = Counter()
    for sample in range(40000):
        source, draw = blend.source_of(sample)
        assert draw == counts[source]
        counts[source] += 1
        for number, share in enumerate((0.5, 0.3, 0.2)):
            assert abs(counts[number] - share * (sample + 1)) <= 1.5


def test_any_stretch_of_a_blend_can_be_computed_alone():
    shares = [1 / 3, 1e-4, 0.6]
    in_order = Blend(shares)
    wanted = [in_order.source_of(sample) for sample in range(50000)]
    for sample in (49999, 17000, 16384, 16383, 5):
        assert Blend(shares).source_of(sample) == wanted[sample]


def test_a_blend_without_weights_reads_every_source_once_an_epoch():
    stores = [counting_store([81]), counting_store([33], first=100), counting_store([145], first=1000)]
    whole = stream(stores=stores, global_batch_size=64, micro_batch_size=1)
    for _ in range(3):
        seen = [token for batch in whole.next_step() for token in batch.tokens.tolist()]
        assert len(set(seen)) == len(seen) == 256


def test_a_blend_with_weights_repeats_the_small_source_in_new_orders():
    stores = [counting_store([17]), counting_store([241], first=100)]
    whole = stream(stores=stores, shares=[3.0, 1.0], global_batch_size=32, micro_batch_size=1)
    seen = [row for _ in range(4) for row in rows(whole.next_step())]
    small = [row for row in seen if row[0] < 100]
    assert len(small) == 96
    passes = [tuple(map(tuple, small[start : start + 4])) for start in range(0, 96, 4)]
    assert all(len(set(once)) == 4 for once in passes)
    assert len(set(passes)) > 10


def test_labels_of_a_stream_never_cross_documents():
    store = TokenStore.from_documents([[number] * 7 for number in range(40)], 50)
    whole = stream(stores=[store])
    for _ in range(whole.steps_per_epoch):
        for batch in whole.next_step():
            labelled = batch.labels >= 0
            assert np.array_equal(batch.labels[labelled], batch.tokens[labelled])
