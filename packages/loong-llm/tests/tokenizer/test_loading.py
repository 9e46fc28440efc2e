import json
import pickle

import pytest
from text_toys import WORDS, trained_tokenizer

from loong_core.errors import UserError
from loong_llm.tokenizer import HuggingFaceEncoder, load_tokenizer, tokenizer_faults


def test_a_folder_opens_as_transformers_opens_it(tmp_path):
    from transformers import AutoTokenizer

    folder = trained_tokenizer(tmp_path)
    ids = load_tokenizer(str(folder))(WORDS).input_ids
    assert ids == AutoTokenizer.from_pretrained(str(folder))(WORDS).input_ids
    assert len(ids) < len(WORDS) / 2


def test_the_models_own_tokenizer_is_the_default(tmp_path):
    assert load_tokenizer(None, trained_tokenizer(tmp_path)).eos_token == "<|endoftext|>"


def test_no_tokenizer_at_all_says_how_to_name_one():
    with pytest.raises(UserError, match="set tokenizer to a folder, or to 'bytes'"):
        load_tokenizer(None, None)


def test_a_name_on_the_hub_is_not_downloaded():
    with pytest.raises(UserError, match=r"Qwen/Qwen3-0\.6B is no folder on this machine.*nothing is downloaded"):
        load_tokenizer("Qwen/Qwen3-0.6B")


def test_a_folder_without_tokenizer_files_says_what_it_holds(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"holds none of tokenizer\.json.*it holds config\.json"):
        load_tokenizer(str(tmp_path))


def test_a_tokenizer_that_needs_code_of_its_own_is_refused(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    auto_map = {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"auto_map": auto_map}))
    with pytest.raises(UserError, match=r"needs Python code of its own .*tokenization_own"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_file_is_told_with_its_folder(tmp_path, name):
    folder = trained_tokenizer(tmp_path / "broken")
    (folder / name).write_text((folder / name).read_text()[:-30])
    with pytest.raises(UserError, match="broken"):
        load_tokenizer(str(folder))


def test_ids_beyond_the_embedding_are_a_fault_with_numbers(tmp_path):
    tokenizer = load_tokenizer(str(trained_tokenizer(tmp_path, vocab_size=300)))
    assert tokenizer_faults(tokenizer, 300) == []
    (fault,) = tokenizer_faults(tokenizer, 299)
    assert "ids up to 299" in str(fault)
    assert "the model's embedding has 299 rows" in str(fault)


def test_a_tokenizer_that_cannot_end_a_document_is_a_fault(tmp_path):
    tokenizer = load_tokenizer(str(trained_tokenizer(tmp_path, eos=False)))
    assert "has no eos_token" in str(tokenizer_faults(tokenizer, 1000)[0])
    with pytest.raises(UserError, match="has no eos_token"):
        HuggingFaceEncoder(tokenizer)


def test_documents_of_a_tokenizer_without_a_beginning_only_end(tmp_path):
    encoder = HuggingFaceEncoder(load_tokenizer(str(trained_tokenizer(tmp_path))))
    assert (encoder.prefix, encoder.suffix) == ((), (0,))
    assert encoder.unscored_bytes("the quick") == len("the")


def test_equal_tokenizers_have_equal_fingerprints_and_others_do_not(tmp_path):
    first = HuggingFaceEncoder(load_tokenizer(str(trained_tokenizer(tmp_path / "a"))))
    again = HuggingFaceEncoder(load_tokenizer(str(trained_tokenizer(tmp_path / "b"))))
    other = HuggingFaceEncoder(load_tokenizer("bytes"))
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_an_encoder_travels_to_other_processes(tmp_path):
    encoder = HuggingFaceEncoder(load_tokenizer(str(trained_tokenizer(tmp_path))))
    assert pickle.loads(pickle.dumps(encoder)).encode_batch([WORDS]) == encoder.encode_batch([WORDS])
