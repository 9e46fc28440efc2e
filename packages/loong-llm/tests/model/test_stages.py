"""A model cut into stages, and generation from a cache, compute what the whole model does."""

import dataclasses

import pytest
import torch
from toy_models import CONFIGS, batch_of, randomise

from loong_core.data.batch import PackedBatch
from loong_core.nn.decoder import Decoder
from loong_core.nn.key_value_cache import KeyValueCache
from loong_core.parallel.context import ParallelContext
from loong_llm.families.registry import find_family

ONE = ParallelContext.single()
HF = CONFIGS["qwen3, tied, biased"]
CONFIG = find_family(HF).decoder_config(HF)


def whole_model():
    model = Decoder(CONFIG, ONE, dtype=torch.float64)
    randomise(model)
    return model


def test_stages_that_pass_hidden_states_on_give_the_whole_model_s_loss_and_gradients():
    model, batch = whole_model(), batch_of([7, 1, 12])
    first = Decoder(CONFIG, ONE, layers=range(0, 1), head=False, dtype=torch.float64)
    last = Decoder(CONFIG, ONE, layers=range(1, 2), embedding=False, dtype=torch.float64)
    state = model.state_dict()
    first.load_state_dict({name: state[name] for name in first.state_dict()})
    last.load_state_dict({name: state[name] for name in last.state_dict()})
    loss = last(batch, first(batch))
    torch.testing.assert_close(loss, model(batch), rtol=1e-12, atol=1e-12)

    loss.sum().backward()
    model(batch).sum().backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    found = {name: parameter.grad for stage in (first, last) for name, parameter in stage.named_parameters()}
    tied = found.pop("head.weight")
    found["embedding.weight"] = found["embedding.weight"] + tied
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_only_the_first_copy_of_a_tied_table_counts_in_the_norm():
    first = Decoder(CONFIG, ONE, layers=range(0, 1), head=False)
    last = Decoder(CONFIG, ONE, layers=range(1, 2), embedding=False)
    assert (first.tied_table, last.tied_table) == (first.embedding.weight, last.head.weight)
    assert (first.embedding.weight.shared, last.head.weight.shared) == (False, True)
    whole = Decoder(CONFIG, ONE)
    assert whole.head.weight is whole.embedding.weight
    assert not whole.head.weight.shared


def test_a_stage_without_its_input_or_its_head_says_so():
    middle = Decoder(CONFIG, ONE, layers=range(0, 1), embedding=False, head=False)
    with pytest.raises(ValueError, match="was given no hidden states"):
        middle(batch_of([3]))
    with pytest.raises(ValueError, match="no head"):
        middle.logits(batch_of([3]))


def new_tokens(cache, pieces):
    """A batch of each sequence's next tokens."""
    lengths = [len(piece) for piece in pieces]
    tokens = torch.cat(pieces)
    return dataclasses.replace(PackedBatch.from_lengths(tokens, tokens, lengths), position_ids=cache.positions(lengths))


@torch.no_grad()
@pytest.mark.parametrize("turns", [((5, 3), (6, 4), (9, 6)), ((1, 1), (2, 2), (9, 6))])
def test_tokens_brought_in_turns_get_the_logits_of_the_whole_sequences(monkeypatch, turns):
    monkeypatch.setattr("loong_core.nn.key_value_cache._LEAST_ROOM", 1)  # so that room is made more than once
    model, batch = whole_model(), batch_of([9, 7])
    expected = model.logits(batch).split([9, 7])
    one, two = batch.tokens.split([9, 7])
    cache = KeyValueCache(2, 9)
    for before, until in zip(((0, 0), *turns), turns):
        turn = [slice(start, stop) for start, stop in zip(before, until)]
        logits = model.logits(new_tokens(cache, [one[turn[0]], two[turn[1]]]), cache=cache)
        wanted = torch.cat([expected[0][turn[0]], expected[1][turn[1]]])
        torch.testing.assert_close(logits, wanted, rtol=1e-10, atol=1e-12)
    assert cache.lengths == [9, 6]


@torch.no_grad()
def test_tokens_taken_back_leave_no_trace():
    model, batch = whole_model(), batch_of([9])
    expected = model.logits(batch)
    cache = KeyValueCache(1, 12)
    model.logits(new_tokens(cache, [batch.tokens[:4]]), cache=cache)
    model.logits(new_tokens(cache, [batch.tokens[:5]]), cache=cache)  # a wrong continuation
    cache.rewind([4])
    logits = model.logits(new_tokens(cache, [batch.tokens[4:]]), cache=cache)
    torch.testing.assert_close(logits, expected[4:], rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_a_sequence_longer_than_the_cache_is_refused():
    model, cache = whole_model(), KeyValueCache(1, 4)
    with pytest.raises(ValueError, match="would hold 5 tokens, the cache has room for 4"):
        model.logits(new_tokens(cache, [torch.arange(5)]), cache=cache)
