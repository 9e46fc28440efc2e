"""Each kind of bad input gets one clear message, and leaves nothing half-written behind."""

import json

import pytest

from loong_core.errors import UserError
from loong_llm.conversations.corpus import (
    ConversationSettings,
    ConversationSource,
    conversation_faults,
    open_conversations,
)
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.tokenizer import load_tokenizer

GOOD = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]}


@pytest.fixture(scope="module")
def encoder():
    return ConversationEncoder(load_tokenizer("bytes"), RenderSettings("plain"))


def messages(*pairs):
    return {"messages": [{"role": role, "content": content} for role, content in pairs]}


def opened(path, encoder, **settings):
    settings = {"sequence_length": 64, **settings}
    source = ConversationSource(str(path))
    return open_conversations(ConversationSettings((source,), path.parent / "cache", **settings), encoder)


def write(path, *lines):
    """Lines of JSON, given as values or as they are."""
    encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    path.write_bytes(b"\n".join(encoded) + b"\n")
    return path


def image(url="a.png"):
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": url}}]
    return {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "A cat."}]}


TOOL_BEFORE_CALL = messages(("user", "a"), ("assistant", "b"), ("tool", "c"), ("assistant", "d"))
BAD_ARGUMENTS = {
    "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{oops"}}]},
    ]
}

BAD = {
    "broken JSON": (b'{"messages": [}', r"broken JSON at column 15: Expecting value"),
    "a line cut short": (b'{"messages": [{"role": "us', "the line ends inside the object: was the file cut short"),
    "no object": (b"[1, 2]", "expected an object, found list"),
    "bytes that are not UTF-8": (b'{"messages": "\xff"}', r"byte 0xff is not UTF-8 .*convert the file to UTF-8"),
    "roles out of order": (
        messages(("user", "a"), ("user", "b"), ("assistant", "c")),
        "roles out of order: message 1 is the user's after user, expected assistant",
    ),
    "an answer first": (messages(("assistant", "a")), "message 0 is the assistant's first, expected system or user"),
    "a system prompt in the middle": (
        messages(("user", "a"), ("assistant", "b"), ("system", "c"), ("user", "d"), ("assistant", "e")),
        "message 2 is the system's after assistant, expected user or tool",
    ),
    "a tool result without a call": (TOOL_BEFORE_CALL, "message 2 is a tool's, but no tool was called before"),
    "an unknown role": (messages(("boss", "a")), "message 0 has the unknown role 'boss'; known are system, user"),
    "an empty answer": (messages(("user", "a"), ("assistant", "  ")), r"message 1 \(assistant\) has empty content"),
    "no content": ({"messages": [{"role": "user"}, {"role": "assistant", "content": "a"}]}, r"\(user\) has no content"),
    "no role": ({"messages": [{"content": "a"}]}, "message 0 has no role; its fields are 'content'"),
    "no messages": ({"messages": []}, "no messages: expected a list of messages"),
    "another schema within the file": ({"instruction": "a", "output": "b"}, "no field 'messages'; the fields are 'ins"),
    "nothing that the assistant says": (messages(("user", "a")), "nothing to train on: no message is the assistant's"),
    "an image": (image(), "message 0 holds an image_url part, and this run is for text only.*loong-vlm"),
    "tool arguments that are not JSON": (BAD_ARGUMENTS, "message 1: the arguments of f are not JSON"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sample_stops_the_run_with_file_and_line(tmp_path, encoder, name):
    line, expected = BAD[name]
    path = write(tmp_path / "talk.jsonl", GOOD, GOOD, line, GOOD)
    with pytest.raises(UserError, match=expected) as raised:
        opened(path, encoder)
    assert str(raised.value).startswith(f"{path}, line 3: ")
    assert "set data.bad_samples to skip" in str(raised.value)
    assert not list((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("name", BAD)
def test_a_bad_sample_is_left_out_and_counted_when_asked_for(tmp_path, encoder, name):
    line, _ = BAD[name]
    path = write(tmp_path / "talk.jsonl", GOOD, line, GOOD)
    corpus = opened(path, encoder, bad_samples="skip")
    assert len(corpus.train[0].store) == 2
    (warning,) = corpus.warnings()
    assert "1 of 3 records were left out" in warning
    assert f"the first: {path}, line 2: " in warning


def test_a_cached_source_still_tells_what_was_left_out(tmp_path, encoder):
    path = write(tmp_path / "talk.jsonl", GOOD, b"{", GOOD)
    first, second = (opened(path, encoder, bad_samples="skip").warnings() for _ in range(2))
    assert first == second
    assert "1 broken JSON" in second[0]


def test_a_source_of_which_nothing_is_left(tmp_path, encoder):
    path = write(tmp_path / "talk.jsonl", messages(("user", "a")), messages(("user", "b")))
    with pytest.raises(UserError, match=r"no sample to train on: 2 of 2 records were left out \(2 without a trained"):
        opened(path, encoder, bad_samples="skip")


def test_an_empty_file(tmp_path, encoder):
    path = tmp_path / "talk.jsonl"
    path.write_bytes(b"\n\n")
    with pytest.raises(UserError, match="not one readable record; give the run some conversations"):
        opened(path, encoder)


def test_files_of_unlike_schemas_in_one_source(tmp_path, encoder):
    folder = tmp_path / "data"
    folder.mkdir()
    write(folder / "a.jsonl", GOOD)
    write(folder / "b.jsonl", {"instruction": "a", "output": "b"})
    with pytest.raises(
        UserError, match=r"unlike schemas.*a\.jsonl holds messages.*b\.jsonl holds alpaca.*source of each"
    ):
        opened(folder, encoder)


def test_a_form_that_is_not_known(tmp_path, encoder):
    path = write(tmp_path / "talk.jsonl", {"question": "a", "answer": "b"})
    with pytest.raises(
        UserError, match=r"its fields are 'question', 'answer', expected .*tell which is which with fields"
    ):
        opened(path, encoder)


def test_plain_text_is_no_conversation(tmp_path, encoder):
    (tmp_path / "talk.txt").write_text("Hello")
    with pytest.raises(UserError, match=r"is plain text, and conversations come from \.jsonl"):
        opened(tmp_path / "talk.txt", encoder)


def test_a_csv_row_of_the_wrong_width(tmp_path, encoder):
    path = tmp_path / "talk.csv"
    path.write_text("instruction,output\na,b\nc,d,e\n")
    with pytest.raises(UserError, match=r"talk\.csv, line 3: 3 cells, the header has 2; quote cells with commas"):
        opened(path, encoder)


def test_a_csv_cell_that_is_not_utf8(tmp_path, encoder):
    path = tmp_path / "talk.csv"
    path.write_bytes(b"instruction,output\na,b\nc,\xe9\n")
    with pytest.raises(UserError, match=r"talk\.csv, line 3: byte 0xe9 is not UTF-8"):
        opened(path, encoder)


def test_a_truncated_parquet_file(tmp_path, encoder):
    (tmp_path / "talk.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(UserError, match=r"talk\.parquet is not a whole parquet file"):
        opened(tmp_path / "talk.parquet", encoder)


def test_a_sample_whose_answer_lies_past_the_sequence(tmp_path, encoder):
    path = write(tmp_path / "talk.jsonl", messages(("user", "x" * 100), ("assistant", "Hi.")), GOOD)
    corpus = opened(path, encoder)
    (sequences,) = corpus.sequences()
    assert sequences.count.dropped == 1
    assert "1 too long and left out" in corpus.packing_report()[0]


def test_no_sample_with_a_trained_token_within_the_sequence(tmp_path, encoder):
    path = write(tmp_path / "talk.jsonl", messages(("user", "x" * 100), ("assistant", "Hi.")))
    with pytest.raises(UserError, match=r"none of its 1 samples has a trained token within data\.sequence_length 64"):
        opened(path, encoder).sequences()


def test_a_long_sample_can_stop_the_run(tmp_path, encoder):
    path = write(tmp_path / "talk.jsonl", messages(("user", "x" * 100), ("assistant", "Hi.")))
    with pytest.raises(UserError, match=r"sample 0 has 123 tokens, data\.sequence_length is 64; raise it, or set data"):
        opened(path, encoder, long_samples="stop").sequences()


def test_held_out_samples_that_are_trained_on_are_warned_of(tmp_path, encoder):
    train = write(tmp_path / "train.jsonl", GOOD, messages(("user", "a"), ("assistant", "b")))
    held_out = write(tmp_path / "held_out.jsonl", GOOD, messages(("user", "c"), ("assistant", "d")))
    corpus = opened(train, encoder, validation=(ConversationSource(str(held_out)),))
    assert corpus.warnings() == ["1 of 2 held-out samples are in the training data too, word for word"]


def test_a_prepared_folder_of_another_template(tmp_path, encoder):
    from loong_llm.conversations.corpus import prepare_source

    path = write(tmp_path / "talk.jsonl", GOOD)
    prepare_source(ConversationSource(str(path)), tmp_path / "ready", encoder)
    assert len(opened(tmp_path / "ready", encoder).train[0].store) == 1
    other = ConversationEncoder(encoder.tokenizer, RenderSettings("alpaca"))
    with pytest.raises(UserError, match=r"prepared with another tokenizer, chat template or data\.train_on"):
        opened(tmp_path / "ready", other)


def test_an_id_that_the_embedding_does_not_have(tmp_path, encoder):
    corpus = opened(write(tmp_path / "talk.jsonl", *[GOOD] * 4), encoder)
    stream = corpus.stream(global_batch_size=1, micro_batch_size=1, vocab_size=200)
    with pytest.raises(UserError, match="holds token id 256, but the model's vocab_size is 200"):
        stream.next_step()


def test_check_tells_every_fault_of_the_sources_at_once(tmp_path):
    write(tmp_path / "odd.jsonl", {"question": "a"})
    faults = conversation_faults(
        (
            ConversationSource(str(tmp_path / "missing.jsonl"), 1.0),
            ConversationSource(str(tmp_path / "odd.jsonl")),
        ),
        "data.train",
    )
    assert [fault.where for fault in faults] == ["data.train", "data.train[0]", "data.train[1]"]
    assert "does not exist" in faults[1].what
