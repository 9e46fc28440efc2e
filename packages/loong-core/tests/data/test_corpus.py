import json

import numpy as np
import pytest
from data_toys import ByteEncoder

from loong_core.data.corpus import CorpusSettings, open_corpus
from loong_core.data.indexed import IndexedWriter
from loong_core.data.shared_build import from_first_rank, on_every_rank
from loong_core.data.sources import SourceSpec
from loong_core.errors import UserError

TEXTS = [f"document {number}: " + "word " * (number % 7) for number in range(40)]


def write_lines(path, texts=TEXTS):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def settings(tmp_path, *train, **changes):
    specs = tuple(SourceSpec(path) if isinstance(path, str) else path for path in train)
    return CorpusSettings(train=specs, cache=tmp_path / "cache", sequence_length=16, **changes)


def document_texts(store):
    return [bytes(store.document(index)[1:-1].astype(np.uint8)).decode() for index in range(len(store))]


def test_text_is_tokenised_once_and_then_read_from_the_cache(tmp_path):
    path = write_lines(tmp_path / "a.jsonl")
    seen = []
    corpus = open_corpus(settings(tmp_path, path), ByteEncoder(), seen.append)
    assert document_texts(corpus.train[0].stores[0]) == TEXTS
    assert (seen[-1].documents, seen[-1].done_bytes) == (40, seen[-1].total_bytes)
    again = []
    open_corpus(settings(tmp_path, path), ByteEncoder(), again.append)
    assert again == []
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_changed_text_or_another_tokenizer_does_not_meet_old_ids(tmp_path):
    class Other(ByteEncoder):
        fingerprint = "another"

    path = write_lines(tmp_path / "a.jsonl")
    open_corpus(settings(tmp_path, path), ByteEncoder())
    open_corpus(settings(tmp_path, path), Other())
    changed = open_corpus(settings(tmp_path, write_lines(tmp_path / "a.jsonl", ["other"] * 9)), ByteEncoder())
    assert document_texts(changed.train[0].stores[0]) == ["other"] * 9
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_a_bad_line_leaves_no_cache_behind(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n{"text": \n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: broken JSON"):
        open_corpus(settings(tmp_path, str(path)), ByteEncoder())
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_source_without_text_is_refused(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", ["", ""])
    with pytest.raises(UserError, match=r"a\.jsonl: not one document with text in it"):
        open_corpus(settings(tmp_path, path), ByteEncoder())


def test_a_prepared_pair_needs_no_tokenizer_and_text_does(tmp_path):
    with IndexedWriter(tmp_path / "corpus", 300) as writer:
        for text in TEXTS:
            writer.add(np.array([256, *text.encode(), 257]), np.array([len(text) + 2]), np.array([True]))
    corpus = open_corpus(settings(tmp_path, str(tmp_path / "corpus")), None)
    assert document_texts(corpus.train[0].stores[0]) == TEXTS
    with pytest.raises(UserError, match="is text, and there is no tokenizer"):
        open_corpus(settings(tmp_path, write_lines(tmp_path / "a.jsonl")), None)


def test_a_pair_and_its_text_make_the_same_samples(tmp_path):
    with IndexedWriter(tmp_path / "corpus", 300) as writer:
        for text in TEXTS:
            writer.add(np.array([256, *text.encode(), 257]), np.array([len(text) + 2]), np.array([True]))
    sizes = {"global_batch_size": 4, "micro_batch_size": 4}
    pair = open_corpus(settings(tmp_path, str(tmp_path / "corpus")), None).stream(**sizes)
    text = open_corpus(settings(tmp_path, write_lines(tmp_path / "a.jsonl")), ByteEncoder()).stream(**sizes)
    for _ in range(5):
        assert pair.next_step()[0].tokens.tolist() == text.next_step()[0].tokens.tolist()


def test_a_fraction_of_the_documents_is_held_out_and_not_trained_on(tmp_path):
    path = write_lines(tmp_path / "a.jsonl")
    corpus = open_corpus(settings(tmp_path, path, validation_fraction=0.2, seed=1), ByteEncoder())
    trained = document_texts(corpus.train[0].stores[0])
    held_out = corpus.held_out()
    assert held_out is not None
    kept_back = document_texts(held_out.stores[0])
    assert (len(trained), len(kept_back)) == (32, 8)
    assert sorted(trained + kept_back) == sorted(TEXTS)
    other_seed = open_corpus(settings(tmp_path, path, validation_fraction=0.2, seed=2), ByteEncoder()).held_out()
    assert other_seed is not None
    assert document_texts(other_seed.stores[0]) == kept_back


def test_a_single_document_cannot_be_split(tmp_path):
    (tmp_path / "a.txt").write_text("one text " * 20)
    with pytest.raises(UserError, match=r"needs at least two documents .* have 1 .* give data\.validation"):
        open_corpus(settings(tmp_path, str(tmp_path / "a.txt"), validation_fraction=0.5), ByteEncoder())


def test_held_out_text_that_is_trained_on_is_warned_of(tmp_path):
    train = write_lines(tmp_path / "a.jsonl", [*TEXTS, ""])
    held_out = write_lines(tmp_path / "b.jsonl", ["only here", *TEXTS[:3]])
    corpus = open_corpus(settings(tmp_path, train, validation=(SourceSpec(held_out),)), ByteEncoder())
    empty, shared = corpus.warnings()
    assert "1 document without text left out" in empty
    assert shared == "3 of 4 held-out documents also in the training data, word for word"


def test_weights_of_sources_are_their_shares_of_the_samples(tmp_path):
    small = SourceSpec(write_lines(tmp_path / "a.jsonl", ["a" * 30] * 4), 0.75)
    large = SourceSpec(write_lines(tmp_path / "b.jsonl", ["b" * 30] * 40), 0.25)
    stream = open_corpus(settings(tmp_path, small, large), ByteEncoder()).stream(
        global_batch_size=40, micro_batch_size=1
    )
    of_small = sum(ord("a") in batch.tokens.tolist() for batch in stream.next_step())
    assert of_small == 30


def test_tokenising_in_processes_gives_the_same_as_in_this_one(tmp_path):
    path = write_lines(tmp_path / "a.jsonl")
    one = open_corpus(settings(tmp_path, path), ByteEncoder()).train[0].stores[0]
    several = (
        open_corpus(CorpusSettings((SourceSpec(path),), tmp_path / "other", 16, workers=2), ByteEncoder())
        .train[0]
        .stores[0]
    )
    assert several.digest == one.digest


def test_an_error_in_a_tokenising_process_reaches_the_user(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "good"}\n{"body": "bad"}\n')
    with pytest.raises(UserError, match=r"a\.jsonl, line 2: no key 'text'"):
        open_corpus(settings(tmp_path, str(path), workers=2), ByteEncoder())


def open_on_rank(folder, path):
    import torch.distributed as dist

    corpus = open_corpus(settings(folder, path), ByteEncoder() if dist.get_rank() == 0 else Never())
    return corpus.stream(global_batch_size=4, micro_batch_size=2, data_rank=dist.get_rank(), data_size=2).identity


class Never(ByteEncoder):
    def encode_batch(self, texts):
        raise AssertionError("only rank 0 tokenises")


def test_rank_zero_tokenises_for_all(tmp_path, ranks):
    first, second = ranks.run(2, open_on_rank, tmp_path, write_lines(tmp_path / "a.jsonl"))
    assert first == second


def refuse_on_rank(folder, path):
    try:
        open_corpus(settings(folder, path), ByteEncoder())
    except UserError as error:
        return str(error)
    return "no error"


def test_every_rank_tells_rank_zeros_error(tmp_path, ranks):
    path = tmp_path / "a.jsonl"
    path.write_text("{}\n")
    told = ranks.run(2, refuse_on_rank, tmp_path, str(path))
    assert told[0] == told[1]
    assert "a.jsonl, line 1: no key 'text'" in told[0]


def fail_on_rank_one():
    import torch.distributed as dist

    def act():
        if dist.get_rank() == 1:
            raise UserError("cannot see the folder")
        return dist.get_rank()

    try:
        return on_every_rank(act)
    except UserError as error:
        return str(error)


def test_an_error_on_one_rank_is_raised_on_all(ranks):
    assert ranks.run(2, fail_on_rank_one) == ["on rank 1: cannot see the folder"] * 2


def slow_build():
    import time

    from loong_core.data import shared_build

    shared_build._HEARTBEAT_SECONDS = 0.05
    try:
        return from_first_rank(lambda: time.sleep(0.2) or "built")
    finally:
        shared_build._HEARTBEAT_SECONDS = 20.0


def test_ranks_wait_for_a_slow_build_without_one_long_collective(ranks):
    assert ranks.run(2, slow_build) == ["built", "built"]
