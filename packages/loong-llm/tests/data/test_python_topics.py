from pydoc_data.topics import topics

import numpy as np

from loong_core.data.documents import blocks, read_block
from loong_core.data.sources import resolve
from loong_core.data.token_store import TokenStore
from loong_llm.data.bigram import bigram_loss, fit_bigram
from loong_llm.data.python_topics import paragraphs, python_topics, write_python_topics


def test_every_topic_is_on_one_side_as_written():
    train, held_out = python_topics()
    assert train | held_out == topics
    assert not train.keys() & held_out.keys()
    size = sum(map(len, topics.values()))
    assert 0.05 * size < sum(map(len, held_out.values())) <= 0.1 * size
    assert len(held_out) > 10


def test_no_held_out_paragraph_is_trained_on():
    train, held_out = python_topics()
    trained = set().union(*map(paragraphs, train.values()))
    assert not trained & set().union(*map(paragraphs, held_out.values()))


def test_written_files_hold_the_topics(tmp_path):
    files = write_python_topics(tmp_path / "data")
    for path, part in zip((files.train, files.held_out), python_topics()):
        read = [piece.text for block in blocks(resolve(str(path))) for piece in read_block(block, "text")]
        assert read == list(part.values())


def test_a_bigram_model_is_a_distribution():
    documents = [np.array([0, 1, 2, 1, 2, 0, 3]), np.array([3, 3, 1])]
    model = fit_bigram(documents, 5)
    for first in range(5):
        total = sum(np.exp(-model.loss([np.array([first, second])])) for second in range(5))
        assert abs(total - 1) < 1e-12


def test_a_bigram_model_learns_what_follows_what():
    pattern = [0, 1, 2] * 50
    train = TokenStore.from_documents([pattern] * 10, 4)
    assert bigram_loss(train, TokenStore.from_documents([pattern], 4), 4) < 0.01
    generator = np.random.default_rng(0)
    noise = [generator.integers(4, size=5000).tolist() for _ in range(10)]
    loss = bigram_loss(TokenStore.from_documents(noise[1:], 4), TokenStore.from_documents(noise[:1], 4), 4)
    assert abs(loss - np.log(4)) < 0.01


def test_the_smoothing_of_a_bigram_model_is_near_the_best_for_unseen_text():
    from loong_llm.data.bigram import Bigram

    train, held_out = python_topics()
    ids = [[np.array([256, *text.encode(), 257]) for text in part.values()] for part in (train, held_out)]
    model = fit_bigram(ids[0], 259)
    best = min(
        Bigram(model.pairs, model.counts, model.before, model.single, concentration).loss(ids[1])
        for concentration in (0.1, 1.0, 10.0, 100.0, 1000.0)
    )
    assert model.loss(ids[1]) < best + 0.02
