"""Whatever is wrong with a JSON text is one kind of error."""

import json

import pytest

from loong_core.errors import UserError
from loong_core.json_text import parse_json, read_json_object


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 5000, "{", "", "{'a': 1}"])
def test_what_python_cannot_hold_is_not_json_either(text):
    with pytest.raises(json.JSONDecodeError):
        parse_json(text)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff", "codec can't decode"),
        (b"[1]", "holds a list, not a JSON object"),
        (None, "is missing"),
    ],
)
def test_a_file_without_a_readable_object_is_named(tmp_path, content, words):
    file = tmp_path / "config.json"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UserError, match=words) as refused:
        read_json_object(file)
    assert str(file) in str(refused.value)
