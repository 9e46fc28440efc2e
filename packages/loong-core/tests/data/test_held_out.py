import pytest
import torch
from data_toys import counting_store

from loong_core.data.held_out import HeldOut
from loong_core.errors import UserError

LENGTHS = [3, 17, 1, 8, 40, 2, 5, 11, 1, 12]


def pairs(batches):
    """Every (input, label) that is trained on."""
    found = []
    for batch in batches:
        kept = batch.labels >= 0
        found += list(zip(batch.tokens[kept].tolist(), batch.labels[kept].tolist()))
    return found


def test_every_token_but_the_first_of_its_document_is_predicted_once():
    held_out = HeldOut([counting_store(LENGTHS)], 8)
    predicted = sorted(label for _, label in pairs(held_out.microbatches(micro_batch_size=2)))
    first = {sum(LENGTHS[:number]) for number in range(len(LENGTHS))}
    assert predicted == [token for token in range(100) if token not in first]
    assert held_out.predicted_tokens == len(predicted)


def test_windows_begin_at_multiples_of_the_sequence_length_in_their_document():
    held_out = HeldOut([counting_store([20])], 8)
    starts = {}
    for batch in held_out.microbatches(micro_batch_size=1):
        for start in batch.cu_seqlens[:-1].tolist():
            if batch.labels[start] >= 0:
                starts[int(batch.tokens[start])] = True
    assert sorted(starts) == [0, 8, 16]


def test_overlapping_windows_predict_every_token_once_from_more_context():
    held_out = HeldOut([counting_store([30, 5])], 8, stride=3)
    rows = list(held_out.microbatches(micro_batch_size=1))
    assert sorted(label for _, label in pairs(rows)) == [*range(1, 30), *range(31, 35)]
    assert held_out.predicted_tokens == 33
    for batch in rows:
        for token, label, position in zip(batch.tokens.tolist(), batch.labels.tolist(), batch.position_ids.tolist()):
            assert label < 0 or position >= 5 or position == token % 30


def test_batches_have_one_shape_and_fill_up_without_labels():
    held_out = HeldOut([counting_store(LENGTHS)], 8)
    batches = list(held_out.microbatches(micro_batch_size=4))
    assert {tuple(batch.tokens.shape) for batch in batches} == {(32,)}
    assert {int(batch.cu_seqlens[-1]) for batch in batches} == {32}


@pytest.mark.parametrize("across", [False, True])
def test_ranks_share_the_rows_in_equally_many_batches(across):
    held_out = HeldOut([counting_store(LENGTHS)], 8, attend_across_documents=across)
    alone = sorted(pairs(held_out.microbatches(micro_batch_size=2)))
    shares = [list(held_out.microbatches(micro_batch_size=2, data_rank=rank, data_size=3)) for rank in range(3)]
    assert len({len(share) for share in shares}) == 1
    assert sorted(pair for share in shares for pair in pairs(share)) == alone


def test_across_documents_every_token_but_the_very_first_is_predicted():
    held_out = HeldOut([counting_store(LENGTHS[:5]), counting_store(LENGTHS[5:], 69)], 8, attend_across_documents=True)
    found = sorted(pairs(held_out.microbatches(micro_batch_size=1)))
    assert found == [(token, token + 1) for token in range(99)]
    assert {batch.uniform_length for batch in held_out.microbatches(micro_batch_size=1)} == {8}


def test_a_limited_validation_takes_rows_from_everywhere_and_always_the_same():
    held_out = HeldOut([counting_store([400])], 8)
    once = list(held_out.steps(global_batch_size=4, micro_batch_size=2, steps=2))
    again = list(held_out.steps(global_batch_size=4, micro_batch_size=2, steps=2))
    assert [len(step) for step in once] == [2, 2]
    assert all(torch.equal(a.tokens, b.tokens) for x, y in zip(once, again) for a, b in zip(x, y))
    assert max(int(batch.tokens.max()) for step in once for batch in step) > 300


def test_steps_together_are_all_rows():
    held_out = HeldOut([counting_store(LENGTHS)], 8)
    steps = list(held_out.steps(global_batch_size=8, micro_batch_size=2, data_rank=0, data_size=2))
    assert all(len(step) <= 2 for step in steps)
    rest = held_out.steps(global_batch_size=8, micro_batch_size=2, data_rank=1, data_size=2)
    found = [pair for step in [*steps, *rest] for pair in pairs(step)]
    assert len(found) == held_out.predicted_tokens


def test_held_out_data_without_anything_to_predict_is_refused():
    with pytest.raises(UserError, match="has no document of two tokens"):
        HeldOut([counting_store([1, 1])], 8)
