import json
import math

import pytest
import torch
from text_toys import byte_model, trained_tokenizer

from loong_core.errors import UserError
from loong_llm.evaluate import evaluate
from loong_llm.inference import open_for_inference
from loong_llm.preprocess import preprocess
from loong_llm.tokenizer import HuggingFaceEncoder

TEXTS = ["short", "x", "a longer document, of several windows " * 6, "", "é" * 20]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return byte_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(folder):
    return open_for_inference(folder, torch.device("cpu"))


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "text.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return str(path)


def transformers_loss(folder, texts, length, stride=None):
    """Sum of losses and their number, document by document, window by window."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder).eval()
    total, count = 0.0, 0
    for text in filter(None, texts):
        ids = torch.tensor([*tokenizer(text).input_ids, tokenizer.eos_token_id])
        start = predicted = 0
        while predicted < len(ids) - 1:
            end = min(start + length, len(ids) - 1)
            with torch.no_grad():
                logits = theirs(ids[None, start:end]).logits[0]
            losses = torch.nn.functional.cross_entropy(logits, ids[start + 1 : end + 1], reduction="none")
            total += losses[predicted - start :].double().sum().item()
            count += end - predicted
            start, predicted = start + (stride or length), end
    return total, count


@pytest.mark.parametrize("stride", [None, 16])
def test_loss_equals_transformers_document_by_document(folder, model, data, stride):
    total, count = transformers_loss(folder, TEXTS, 32, stride)
    found = evaluate(model, [data], sequence_length=32, stride=stride)
    assert (found.tokens, found.documents) == (count, 4)
    assert abs(found.loss - total / count) < 1e-6
    assert math.isclose(found.perplexity, math.exp(found.loss))
    text_bytes = sum(len(text.encode()) for text in TEXTS)
    assert math.isclose(found.bits_per_byte, found.loss * count / math.log(2) / text_bytes)


def test_figures_do_not_depend_on_the_batch(model, data):
    one = evaluate(model, [data], sequence_length=32, batch_tokens=32)
    many = evaluate(model, [data], sequence_length=32, batch_tokens=4096)
    assert abs(one.loss - many.loss) < 1e-6
    assert one.tokens == many.tokens


def test_a_prepared_pair_gives_the_same_loss_without_bytes(tmp_path, model, data):
    preprocess([data], tmp_path / "corpus", HuggingFaceEncoder(model.tokenizer))
    pair = evaluate(model, [str(tmp_path / "corpus")], sequence_length=32)
    assert abs(pair.loss - evaluate(model, [data], sequence_length=32).loss) < 1e-6
    assert pair.bits_per_byte is None


def test_the_default_window_is_what_the_model_is_made_for(model, data):
    assert evaluate(model, [data]).sequence_length == 128
    with pytest.raises(UserError, match="sequence_length 129 is more than the 128 tokens"):
        evaluate(model, [data], sequence_length=129)


def test_a_model_without_weights_or_with_a_foreign_tokenizer_is_refused(folder, tmp_path):
    with pytest.raises(UserError, match="ids up to 299, the model's embedding has 259 rows"):
        open_for_inference(folder, torch.device("cpu"), tokenizer=str(trained_tokenizer(tmp_path / "tokenizer")))
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(UserError, match="has a config but no weights"):
        open_for_inference(tmp_path, torch.device("cpu"))


def test_a_bad_line_of_the_data_is_named(model, tmp_path):
    (tmp_path / "text.jsonl").write_text("{}\n")
    with pytest.raises(UserError, match=r"text\.jsonl, line 1: no key 'text'"):
        evaluate(model, [str(tmp_path / "text.jsonl")])
