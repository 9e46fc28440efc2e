"""JSON lines: one object a line, one document an object. A file may also hold one JSON array, or be gzipped."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loong_core.data.text_files import line_number
from loong_core.errors import UserError
from loong_core.json_text import parse_json

_BOM = b"\xef\xbb\xbf"


def block_bounds(path: Path, block_bytes: int) -> Iterator[tuple[int, int | None]]:
    """Byte ranges of whole lines. A gzipped file or an array is one block, since it cannot be entered half-way."""
    if path.name.lower().endswith(".gz") or _is_array(path):
        yield 0, None
        return
    size = path.stat().st_size
    start = 0
    with path.open("rb") as stream:
        while start < size:
            stream.seek(min(start + block_bytes, size) - 1)
            stream.readline()
            yield start, stream.tell()
            start = stream.tell()


def _is_array(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4096).removeprefix(_BOM).lstrip()[:1] == b"["


def read(path: Path, start: int, stop: int | None, text_key: str) -> Iterator[str]:
    """The texts of the lines in bytes `start` to `stop`; empty lines are no documents.

    Raises:
        UserError: a line that is not an object, not UTF-8, or without `text_key`; names file and line.
    """
    if path.name.lower().endswith(".gz"):
        yield from _read_gzip(path, text_key)
        return
    if start == 0 and stop is None:
        yield from _read_array(path, text_key)
        return
    offset = start
    with path.open("rb") as stream:
        stream.seek(start)
        while offset < (stop or 0) and (line := stream.readline()):
            if line.strip():
                try:
                    yield document_text(parse(line), text_key)
                except ValueError as error:
                    where = f"{path}, line {line_number(path, offset)}"
                    raise UserError(f"{where}: {_told(error, cut=not line.rstrip().endswith(b'}'))}") from error
            offset += len(line)


def _read_gzip(path: Path, text_key: str) -> Iterator[str]:
    number = 0
    try:
        with gzip.open(path, "rb") as stream:
            for line in stream:
                number += 1
                if line.strip():
                    yield document_text(parse(line), text_key)
    except ValueError as error:
        raise UserError(f"{path}, line {number}: {_told(error, cut=False)}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}, after line {number}: not a whole gzip file ({error}); copy it again") from error


def _read_array(path: Path, text_key: str) -> Iterator[str]:
    data = path.read_bytes()
    try:
        records = parse_json(data.removeprefix(_BOM).decode("utf-8"))
    except ValueError as error:
        raise UserError(f"{path}: {_told(error, cut=False)}") from error
    for number, record in enumerate(records):
        try:
            yield document_text(record, text_key)
        except ValueError as error:
            raise UserError(f"{path}, element {number}: {error}") from error


def parse(line: bytes) -> Any:
    """The value of one line.

    Raises:
        ValueError: it is not JSON in UTF-8.
    """
    return parse_json(line.removeprefix(_BOM).decode("utf-8"))


def document_text(record: Any, text_key: str) -> str:
    """The text of one record.

    Raises:
        ValueError: the record is not an object, has no `text_key`, or holds something else than text there.
    """
    if not isinstance(record, dict):
        raise ValueError(f"expected an object with {text_key!r}, found {_kind(record)}")
    if text_key not in record:
        keys = ", ".join(repr(key) for key in list(record)[:8]) or "none"
        raise ValueError(f"no key {text_key!r}; its keys are {keys}; set data.text_key to the one that holds the text")
    text = record[text_key]
    if not isinstance(text, str):
        raise ValueError(f"{text_key!r} holds {_kind(text)}, expected a string")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{text_key!r} holds half of a surrogate pair at character {error.start}") from error
    return text


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string"}
    return names.get(type(value), "a list" if isinstance(value, list) else "an object")


def _told(error: ValueError, cut: bool) -> str:
    if isinstance(error, UnicodeDecodeError):
        found = f"0x{error.object[error.start]:02x}"
        return f"byte {found} is not UTF-8 ({error.reason}); convert the file to UTF-8, for example with iconv"
    if isinstance(error, json.JSONDecodeError):
        hint = "; the line ends inside the object: was the file cut short?" if cut else ""
        return f"broken JSON at column {error.colno}: {error.msg}{hint}"
    return str(error)
