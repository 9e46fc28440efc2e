import gzip
import json

import pytest

from loong_core.data import documents
from loong_core.data.checks import source_faults
from loong_core.data.documents import blocks, read_block
from loong_core.data.sources import SourceSpec, resolve
from loong_core.errors import UserError


def texts(path, text_key="text"):
    """Whole documents of what `path` stands for."""
    found, open_text = [], ""
    for block in blocks(resolve(str(path))):
        for piece in read_block(block, text_key):
            open_text = piece.text if piece.starts else open_text + piece.text
            if piece.ends:
                found.append(open_text)
    return found


def lines_of(records):
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def test_a_text_file_is_one_document_as_written(tmp_path):
    text = "Größe\r\n\n  漢字 \U0001f600\n\t"
    (tmp_path / "a.txt").write_bytes(text.encode())
    assert texts(tmp_path / "a.txt") == [text]


def test_a_long_text_file_is_read_in_pieces_that_begin_with_a_visible_character(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_BYTES", 64)
    text = "".join(f"line {number} ä\n\n    \n\u3000indented {number}\n" for number in range(50))
    (tmp_path / "a.txt").write_text(text)
    parts = [part.text for block in blocks(resolve(str(tmp_path / "a.txt"))) for part in read_block(block, "text")]
    assert len(parts) > 10
    assert "".join(parts) == text
    assert not any(part[0].isspace() for part in parts)
    assert texts(tmp_path / "a.txt") == [text]


def test_json_lines_are_read_whole_whatever_the_block_size(tmp_path, monkeypatch):
    records = [{"text": "ö" * size, "id": size} for size in range(60)]
    path = tmp_path / "a.jsonl"
    path.write_text(lines_of(records))
    for size in (1, 17, 100, 1 << 20):
        monkeypatch.setattr(documents, "BLOCK_BYTES", size)
        assert texts(path) == [record["text"] for record in records]


def test_json_lines_may_be_gzipped_or_an_array_or_start_with_a_byte_order_mark(tmp_path):
    records = [{"text": "one"}, {"text": "two"}]
    with gzip.open(tmp_path / "a.jsonl.gz", "wt") as stream:
        stream.write(lines_of(records))
    (tmp_path / "b.json").write_text(json.dumps(records, indent=1))
    (tmp_path / "c.jsonl").write_bytes(b"\xef\xbb\xbf" + lines_of(records).encode() + b"\n\n")
    for name in ("a.jsonl.gz", "b.json", "c.jsonl"):
        assert texts(tmp_path / name) == ["one", "two"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "cut sho', r"line 3: broken JSON at column 10: .*was the file cut short"),
        (b'{"text": "a",}', r"line 3: broken JSON at column 1[34]"),
        (b'{"text": "\xff"}', r"line 3: byte 0xff is not UTF-8"),
        (b'{"txt": "a", "id": 1}', r"line 3: no key 'text'; its keys are 'txt', 'id'; set data.text_key"),
        (b'{"text": null}', r"line 3: 'text' holds null, expected a string"),
        (b'{"text": ["a"]}', r"line 3: 'text' holds a list"),
        (b'{"text": "\\ud800"}', r"line 3: 'text' holds half of a surrogate pair"),
        (b'"text"', r"line 3: expected an object with 'text', found a string"),
    ],
)
@pytest.mark.parametrize("gzipped", [False, True])
def test_a_bad_line_is_named_by_file_and_number(tmp_path, line, message, gzipped, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_BYTES", 10)
    path = tmp_path / ("a.jsonl.gz" if gzipped else "a.jsonl")
    data = b'{"text": "good"}\n\n' + line
    path.write_bytes(gzip.compress(data) if gzipped else data)
    message = message.replace("; its", ".*its") if not gzipped else message.replace(".*was the file cut short", "")
    with pytest.raises(UserError, match=rf"{path.name}, {message}"):
        texts(path)


def test_a_truncated_gzip_file_is_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"text": "good"}\n' * 1000)[:-20])
    with pytest.raises(UserError, match=r"a\.jsonl\.gz, after line \d+: not a whole gzip file"):
        texts(path)


def test_text_that_is_not_utf8_is_named_by_line_and_offset(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"first\nsecond \xe9t\xe9\n")
    with pytest.raises(UserError, match=r"a\.txt, line 2: byte 0xe9 at offset 13 is not UTF-8"):
        texts(tmp_path / "a.txt")


def test_an_element_of_an_array_is_named_by_its_number(tmp_path):
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"body": "b"}]')
    with pytest.raises(UserError, match=r"a\.json, element 1: no key 'text'"):
        texts(tmp_path / "a.json")


def test_check_tells_all_faults_of_a_list_of_sources_at_once(tmp_path):
    (tmp_path / "good.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "empty.jsonl").write_text('{"text": ""}\n')
    (tmp_path / "body.jsonl").write_text('{"body": "a"}\n')
    (tmp_path / "table.csv").write_text("a,b\n")
    names = ["good.jsonl", "goood.jsonl", "empty.jsonl", "body.jsonl", "table.csv"]
    faults = source_faults([SourceSpec(str(tmp_path / name)) for name in names], "data.train", "text")
    assert [fault.where for fault in faults] == [f"data.train[{number}]" for number in (1, 2, 3, 4)]
    told = "\n".join(map(str, faults))
    for words in ("nearest name there is", "not one document with text", "no key 'text'", "unknown format .csv"):
        assert words in told


def test_check_finds_nothing_wrong_with_good_sources(tmp_path):
    (tmp_path / "good.txt").write_text("text")
    assert source_faults([SourceSpec(str(tmp_path))], "data.train", "text") == []
