"""Each kind of bad input among documents, templates and tokenizers gets one clear message, and leaves nothing."""

import json

import numpy as np
import pytest
from text_toys import trained_tokenizer

from loong_core.data.corpus import CorpusSettings, open_corpus
from loong_core.data.sources import SourceSpec
from loong_core.errors import UserError
from loong_llm.conversations.corpus import ConversationSettings, ConversationSource, open_conversations
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.preprocess import preprocess
from loong_llm.tokenizer import HuggingFaceEncoder, load_tokenizer, tokenizer_faults

GOOD = json.dumps({"text": "some text"}).encode()


@pytest.fixture(scope="module")
def encoder():
    return HuggingFaceEncoder(load_tokenizer("bytes"))


def opened(folder, encoder, train, held_out=()):
    specs = [tuple(SourceSpec(str(path)) for path in paths) for paths in ((train,), held_out)]
    settings = CorpusSettings(specs[0], folder / "cache", sequence_length=8, validation=specs[1])
    return open_corpus(settings, encoder)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": "some', r"text\.jsonl, line 2: "),
        (b'{"body": "other"}', r"text\.jsonl, line 2: no key 'text'"),
        (b'{"text": 3}', r"text\.jsonl, line 2: "),
        (b'{"text": "\xff"}', r"text\.jsonl, line 2.*(UTF-8|utf-8)"),
    ],
    ids=["broken JSON", "another schema", "no text", "bytes that are not UTF-8"],
)
def test_a_bad_line_stops_with_file_and_line_and_leaves_no_cache(tmp_path, encoder, line, words):
    path = tmp_path / "text.jsonl"
    path.write_bytes(b"\n".join([GOOD, line, GOOD]) + b"\n")
    with pytest.raises(UserError, match=words):
        opened(tmp_path, encoder, path)
    assert not [each for each in (tmp_path / "cache").glob("*") if each.is_dir()]


def test_documents_without_any_text(tmp_path, encoder):
    path = tmp_path / "text.jsonl"
    path.write_text('{"text": ""}\n')
    with pytest.raises(UserError, match="not one document with text in it; give the run some text"):
        opened(tmp_path, encoder, path)


def test_held_out_documents_that_are_trained_on_are_warned_of(tmp_path, encoder):
    for name in ("train", "held_out"):
        (tmp_path / f"{name}.jsonl").write_bytes(GOOD + b"\n" + json.dumps({"text": name * 3}).encode() + b"\n")
    corpus = opened(tmp_path, encoder, tmp_path / "train.jsonl", (tmp_path / "held_out.jsonl",))
    assert corpus.warnings() == ["1 of 2 held-out documents also in the training data, word for word"]


def test_a_bin_file_that_has_not_the_size_that_its_idx_file_says(tmp_path, encoder):
    (tmp_path / "text.jsonl").write_bytes(GOOD + b"\n")
    preprocess([str(tmp_path / "text.jsonl")], tmp_path / "pair", encoder)
    tokens = (tmp_path / "pair.bin").read_bytes()
    (tmp_path / "pair.bin").write_bytes(tokens[: len(tokens) // 2])
    with pytest.raises(
        UserError, match=r"pair\.bin holds \d+ bytes, pair\.idx says \d+ .*run preprocess again or copy"
    ):
        opened(tmp_path, encoder, tmp_path / "pair")


def test_a_template_that_needs_a_variable_it_is_not_given(tmp_path):
    (tmp_path / "dated.jinja").write_text(
        "{{ today }}{%- for m in messages %}{{ '<' + m.role + '>' + m.content }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{ '<assistant>' }}{%- endif %}"
    )
    talk = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    path = tmp_path / "talk.jsonl"
    path.write_text(json.dumps({"messages": talk}) + "\n")
    tokenizer = load_tokenizer("bytes")
    source = (ConversationSource(str(path)),)
    settings = ConversationSettings(source, tmp_path / "cache", sequence_length=64)
    dated = RenderSettings(str(tmp_path / "dated.jinja"))
    with pytest.raises(UserError, match=r"needs a variable 'today' .* set data\.template_variables\.today"):
        open_conversations(settings, ConversationEncoder(tokenizer, dated))


def test_a_tokenizer_whose_ids_exceed_the_embedding(tmp_path):
    tokenizer = load_tokenizer(str(trained_tokenizer(tmp_path / "tokenizer")))
    (fault,) = tokenizer_faults(tokenizer, 259)
    assert "has ids up to 299" in fault.what
    assert "the model's embedding has 259 rows" in fault.what


def test_a_batch_without_one_trained_token_has_a_loss_of_zero_tokens_and_no_gradient(tmp_path):
    """0/0 cannot occur: samples without a trained token are refused, and a microbatch of none adds nothing."""
    import torch
    from text_toys import byte_model

    from loong_core.data.batch import IGNORED_LABEL, PackedBatch
    from loong_core.parallel.context import ParallelContext
    from loong_llm.model import build_stages, open_model
    from loong_llm.recipes.next_token import next_token_loss

    (decoder,) = build_stages(open_model(byte_model(tmp_path / "model")), ParallelContext.single())
    tokens = torch.from_numpy(np.arange(6))
    batch = PackedBatch.from_lengths(tokens, torch.full_like(tokens, IGNORED_LABEL), [6])
    terms = next_token_loss(decoder, batch, None)
    terms.loss_sum.backward()
    assert int(terms.tokens) == 0
    assert float(terms.loss_sum.detach()) == 0
    assert all(each.grad is None or not each.grad.any() for each in decoder.parameters())
