import json

import pytest

from loong_llm.tokenizer import HuggingFaceEncoder, load_tokenizer
from loong_llm.tokenizer.byte_level import VOCAB_SIZE, byte_tokenizer

TEXTS = ["", "plain", "Größe e\u0301 漢字 \U0001f600\n\n  x = 'don''t' \t\r\n\x00\x7f", "".join(map(chr, range(0x250)))]


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_the_bytes_after_a_beginning(text):
    tokenizer = byte_tokenizer()
    assert tokenizer(text).input_ids == [256, *text.encode()]
    assert tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True) == text


def test_it_has_259_ids_and_names_for_those_that_are_no_bytes():
    tokenizer = byte_tokenizer()
    assert len(tokenizer) == VOCAB_SIZE == 259
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (256, 257, 258)


@pytest.mark.parametrize("model_type", [None, "llama", "qwen3"])
def test_a_saved_folder_opens_with_auto_tokenizer_also_beside_a_model(tmp_path, model_type):
    from transformers import AutoTokenizer

    byte_tokenizer().save_pretrained(tmp_path)
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    opened = AutoTokenizer.from_pretrained(str(tmp_path), local_files_only=True)
    for text in TEXTS:
        ids = opened(text).input_ids
        assert ids == [256, *text.encode()]
        assert opened.decode(ids, skip_special_tokens=True) == text


@pytest.mark.parametrize("model_type", [None, "llama", "qwen2", "qwen3"])
def test_our_loader_opens_a_saved_folder_as_it_is_for_every_model_type(tmp_path, model_type):
    byte_tokenizer().save_pretrained(tmp_path)
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    opened = load_tokenizer(None, tmp_path)
    assert opened(TEXTS[2]).input_ids == [256, *TEXTS[2].encode()]


def test_documents_begin_and_end_with_their_marks():
    encoder = HuggingFaceEncoder(byte_tokenizer())
    assert (encoder.prefix, encoder.suffix, encoder.vocab_size) == ((256,), (257,), 259)
    assert encoder.encode_batch(["ab", ""]) == [[97, 98], []]
