import json

import pytest
from text_toys import WORDS, trained_tokenizer

from loong_core.data.indexed import open_indexed
from loong_core.errors import UserError
from loong_llm.preprocess import preprocess
from loong_llm.tokenizer import HuggingFaceEncoder, load_tokenizer

TEXTS = [WORDS[number:] + str(number) for number in range(60)]


@pytest.fixture
def corpus(tmp_path):
    first, second = tmp_path / "a.jsonl", tmp_path / "b.txt"
    first.write_text("".join(json.dumps({"text": text}) + "\n" for text in [*TEXTS, ""]))
    second.write_text(WORDS * 3)
    return [str(first), str(second)]


@pytest.fixture
def encoder(tmp_path):
    return HuggingFaceEncoder(load_tokenizer(str(trained_tokenizer(tmp_path / "tokenizer"))))


def test_megatrons_reader_gives_back_every_document(tmp_path, corpus, encoder):
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    made = preprocess(corpus, tmp_path / "out" / "corpus", encoder)
    read = IndexedDataset(str(made.prefix))
    wanted = [[*ids, 0] for ids in encoder.encode_batch([*TEXTS, WORDS * 3])]
    assert [read[index].tolist() for index in range(len(read))] == wanted
    assert (made.documents, made.empty_documents, made.tokens) == (61, 1, sum(map(len, wanted)))


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path, corpus, encoder, monkeypatch):
    from loong_core.data import documents

    monkeypatch.setattr(documents, "BLOCK_BYTES", 1000)
    for workers in (1, 2):
        preprocess(corpus, tmp_path / str(workers), encoder, workers=workers)
    for suffix in (".bin", ".idx"):
        one, two = ((tmp_path / f"{workers}{suffix}").read_bytes() for workers in (1, 2))
        assert one == two


def test_a_pair_that_is_there_is_not_overwritten_unasked(tmp_path, corpus, encoder):
    preprocess(corpus[:1], tmp_path / "corpus.bin", encoder)
    with pytest.raises(UserError, match=r"corpus\.bin is there already"):
        preprocess(corpus[1:], tmp_path / "corpus", encoder)
    preprocess(corpus[1:], tmp_path / "corpus", encoder, overwrite=True)
    assert len(open_indexed(tmp_path / "corpus")) == 1


def test_a_bad_line_leaves_nothing_behind(tmp_path, corpus, encoder):
    with open(corpus[0], "a") as stream:
        stream.write('{"text": ')
    with pytest.raises(UserError, match=r"a\.jsonl, line 62: broken JSON"):
        preprocess(corpus, tmp_path / "out" / "corpus", encoder)
    assert list((tmp_path / "out").iterdir()) == []


def test_text_files_without_text_are_refused(tmp_path, encoder):
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match="not one document with text in it; nothing was written"):
        preprocess([str(tmp_path / "a.txt")], tmp_path / "corpus", encoder)
    assert not (tmp_path / "corpus.idx").exists()
