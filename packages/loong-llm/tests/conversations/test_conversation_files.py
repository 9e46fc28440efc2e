"""Conversations in every form and file format come out the same."""

import csv
import gzip
import json

import pytest
from samples_of_talk import MULTI_TURN, TOOL_CALL, TOOLS

from loong_llm.conversations import records
from loong_llm.conversations.corpus import ConversationSettings, ConversationSource, open_conversations, prepare_source
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.formats import detect, reader
from loong_llm.tokenizer import load_tokenizer

PAIRS = [("What is 1+1?", "2"), ('And 2+2, "really"?', "4,\nsurely"), ("Größe?", "groß")]
TALKS = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a in PAIRS]


@pytest.fixture(scope="module")
def encoder():
    return ConversationEncoder(load_tokenizer("bytes"), RenderSettings("plain"))


def texts(path, encoder, tmp_path, **source):
    settings = ConversationSettings((ConversationSource(str(path), **source),), tmp_path / "cache", 256)
    store = open_conversations(settings, encoder).train[0].store
    return [encoder.tokenizer.decode(store.document(index) >> 1) for index in range(len(store))]


EXPECTED = [f"<|begin|>User: {q}\nAssistant: {a}<|end|>" for q, a in PAIRS]


def write_lines(path, records):
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")


def test_json_lines_of_messages(tmp_path, encoder):
    write_lines(tmp_path / "talk.jsonl", [{"messages": talk} for talk in TALKS])
    assert texts(tmp_path / "talk.jsonl", encoder, tmp_path) == EXPECTED


def test_gzipped_json_lines(tmp_path, encoder):
    with gzip.open(tmp_path / "talk.jsonl.gz", "wt", encoding="utf-8") as stream:
        stream.write("".join(json.dumps({"messages": talk}) + "\n" for talk in TALKS))
    assert texts(tmp_path / "talk.jsonl.gz", encoder, tmp_path) == EXPECTED


@pytest.mark.parametrize("wrap", [lambda records: records, lambda records: {"version": 1, "data": records}])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_file_holds_an_array_or_an_object_around_one(tmp_path, encoder, wrap, indent):
    records = [{"messages": talk} for talk in TALKS]
    (tmp_path / "talk.json").write_text(json.dumps(wrap(records), indent=indent), encoding="utf-8")
    assert texts(tmp_path / "talk.json", encoder, tmp_path) == EXPECTED


def test_json_lines_under_the_name_json(tmp_path, encoder):
    write_lines(tmp_path / "talk.json", [{"messages": talk} for talk in TALKS])
    assert texts(tmp_path / "talk.json", encoder, tmp_path) == EXPECTED


def test_sharegpt(tmp_path, encoder):
    write_lines(
        tmp_path / "talk.jsonl",
        [{"id": 1, "conversations": [{"from": "human", "value": q}, {"from": "gpt", "value": a}]} for q, a in PAIRS],
    )
    assert texts(tmp_path / "talk.jsonl", encoder, tmp_path) == EXPECTED


def test_alpaca_in_csv_with_line_breaks_and_quotes_in_cells(tmp_path, encoder):
    with (tmp_path / "talk.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("instruction", "input", "output"), *((q, "", a) for q, a in PAIRS)])
    assert texts(tmp_path / "talk.csv", encoder, tmp_path) == EXPECTED


def test_fields_of_other_names_are_mapped(tmp_path, encoder):
    with (tmp_path / "talk.tsv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter="\t").writerows([("question", "answer"), *PAIRS])
    fields = {"instruction": "question", "output": "answer"}
    assert texts(tmp_path / "talk.tsv", encoder, tmp_path, fields=fields) == EXPECTED


def test_parquet(tmp_path, encoder):
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.Table.from_pylist([{"messages": talk} for talk in TALKS])
    pyarrow.parquet.write_table(table, tmp_path / "talk.parquet", row_group_size=2)
    assert texts(tmp_path / "talk.parquet", encoder, tmp_path) == EXPECTED


def test_an_arrow_file_and_a_folder_saved_by_datasets(tmp_path, encoder):
    from datasets import Dataset

    dataset = Dataset.from_list([{"messages": talk} for talk in TALKS])
    dataset.save_to_disk(tmp_path / "saved")
    assert texts(tmp_path / "saved", encoder, tmp_path) == EXPECTED
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    assert texts(arrow, encoder, tmp_path) == EXPECTED


def test_several_files_of_a_folder_are_read_in_order_of_their_names(tmp_path, encoder):
    folder = tmp_path / "data"
    folder.mkdir()
    for name, talk in zip(("b", "a", "c"), (TALKS[1], TALKS[0], TALKS[2]), strict=True):
        write_lines(folder / f"{name}.jsonl", [{"messages": talk}])
    assert texts(folder, encoder, tmp_path) == EXPECTED


def test_worker_processes_give_the_same_store(tmp_path, encoder, monkeypatch):
    monkeypatch.setattr(records, "BLOCK_BYTES", 1000)
    write_lines(tmp_path / "talk.jsonl", [{"messages": talk} for talk in TALKS * 20])
    assert len(list(records.record_blocks(tmp_path / "talk.jsonl", "jsonl"))) > 4
    source = ConversationSource(str(tmp_path / "talk.jsonl"))
    for workers in (1, 2):
        prepare_source(source, tmp_path / str(workers), encoder, workers=workers)
    for name in ("tokens.bin", "bounds.npy", "store.json"):
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


@pytest.mark.parametrize("arguments", [{"place": "Bern", "days": 2}, '{"place": "Bern", "days": 2}'])
def test_tool_calls_of_openai_and_sharegpt_come_out_the_same(arguments):
    call = {"type": "function", "function": {"name": "weather", "arguments": arguments}}
    openai = [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "rain"},
        {"role": "assistant", "content": "Yes."},
    ]
    sharegpt = [
        {"from": "human", "value": "Rain?"},
        {"from": "function_call", "value": json.dumps({"name": "weather", "arguments": arguments})},
        {"from": "observation", "value": "rain"},
        {"from": "gpt", "value": "Yes."},
    ]
    ours = reader("messages", {})({"messages": openai, "tools": TOOLS})
    theirs = reader("sharegpt", {})({"conversations": sharegpt, "tools": json.dumps([TOOLS[0]["function"]])})
    assert ours.messages == theirs.messages
    assert ours.tools == theirs.tools
    assert ours.messages[1]["tool_calls"][0]["function"]["arguments"] == {"place": "Bern", "days": 2}


def test_text_parts_are_joined_and_developer_is_system():
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    made = reader("messages", {})(
        {"messages": [{"role": "developer", "content": "x"}, {"role": "user", "content": parts}, MULTI_TURN[1]]}
    )
    assert [(message["role"], message["content"]) for message in made.messages] == [
        ("system", "x"),
        ("user", "Hello"),
        ("assistant", "Hi there."),
    ]


def test_alpaca_with_history_and_input():
    record = {"instruction": "Add", "input": "2, 2", "output": "4", "history": [["Hello", "Hi"]], "system": "Be brief."}
    made = reader("alpaca", {})(record)
    assert [message["role"] for message in made.messages] == ["system", "user", "assistant", "user", "assistant"]
    assert made.messages[3] == {"role": "user", "content": "Add\n\n2, 2", "instruction": "Add", "input": "2, 2"}


@pytest.mark.parametrize(
    ("record", "name"),
    [
        ({"messages": MULTI_TURN}, "messages"),
        ({"messages": TOOL_CALL, "tools": TOOLS}, "messages"),
        ({"conversations": [{"from": "human", "value": "a"}]}, "sharegpt"),
        ({"conversations": MULTI_TURN}, "messages"),
        ({"instruction": "a", "output": "b"}, "alpaca"),
        ({"messages": json.dumps(MULTI_TURN)}, "messages"),
        ({"text": "a"}, None),
    ],
)
def test_the_format_is_known_by_its_fields(record, name):
    assert detect(record) == name
