"""Records of data files, each with where it stands, read in blocks that can be read apart from each other.

A record that cannot be read is a `Broken` with what is wrong; whether the run stops there is the caller's to decide.
"""

from __future__ import annotations

import csv
import glob
import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from loong_core.config.files import user_path
from loong_core.data import arrow_tables, json_lines
from loong_core.data.sources import resolve
from loong_core.data.text_files import line_number
from loong_core.errors import UserError
from loong_core.json_text import parse_json

FileKind = Literal["jsonl", "csv", "parquet", "arrow"]
BLOCK_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_ROWS = 256
_CONVERT = "convert the file to UTF-8, for example with iconv"


@dataclass(frozen=True)
class RecordBlock:
    """Part of a file: bytes `start` to `stop` of JSON lines, row groups of parquet; the whole file otherwise."""

    path: Path
    kind: FileKind
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True)
class Found:
    """A record.

    Attributes:
        offset: its byte offset (JSON lines), line (CSV) or number in the file, by which `place` tells where it stands.
        fields: its value, an object.
    """

    offset: int
    fields: dict[str, Any]


@dataclass(frozen=True)
class Broken:
    """A record that cannot be read: which, and what is wrong with it."""

    offset: int
    kind: str
    message: str


def record_files(path: str) -> list[tuple[Path, FileKind]]:
    """The files that a source's path stands for: a file, a folder (`datasets`' too) or a glob.

    Raises:
        UserError: nothing is there, or a file of a format that holds no conversations.
    """
    here = user_path(path)
    tables = [here] if here.is_file() else sorted(Path(match) for match in glob.glob(str(here), recursive=True))
    if here.is_dir():
        tables = sorted(here.glob("*.csv")) + sorted(here.glob("*.tsv"))
    if tables and all(table.suffix.lower() in (".csv", ".tsv") for table in tables):
        return [(table, "csv") for table in tables]
    found: list[tuple[Path, FileKind]] = []
    for file in resolve(path):
        if file.format == "text" or file.format == "indexed":
            raise UserError(
                f"{file.path} is {'plain text' if file.format == 'text' else 'a .bin/.idx pair'}, and conversations "
                "come from .jsonl, .json, .csv, .parquet or .arrow files; name it under documents instead"
            )
        found.append((file.path, file.format))
    return found


def record_blocks(path: Path, kind: FileKind) -> Iterator[RecordBlock]:
    """The blocks of a file in reading order.

    Raises:
        UserError: the file cannot be opened.
    """
    try:
        if kind == "jsonl" and not _is_one_object(path):
            bounds: Iterator[tuple[int, int | None]] = json_lines.block_bounds(path, BLOCK_BYTES)
        elif kind == "parquet":
            bounds = iter(arrow_tables.parquet_bounds(path, BLOCK_BYTES))
        else:
            bounds = iter([(0, None)])
        for start, stop in bounds:
            yield RecordBlock(path, kind, start, stop)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


def read_records(block: RecordBlock) -> Iterator[Found | Broken]:
    """The records of a block, in order.

    Raises:
        UserError: a damaged parquet or arrow file, or a JSON file whose records cannot be told apart.
    """
    if block.kind == "csv":
        return _read_csv(block.path)
    if block.kind == "parquet":
        return _read_parquet(block)
    if block.kind == "arrow":
        return _read_arrow(block.path)
    if block.path.name.lower().endswith(".gz"):
        return _read_gzip(block.path)
    if block.stop is None:
        return _read_json(block.path)
    return _read_lines(block)


def place(block: RecordBlock, offset: int) -> str:
    """Where a record of a block stands, for people."""
    if block.kind == "csv" or block.path.name.lower().endswith(".gz"):
        return f"{block.path}, line {offset}"
    if block.kind == "jsonl" and block.stop is not None:
        return f"{block.path}, line {line_number(block.path, offset)}"
    return f"{block.path}, {'element' if block.kind == 'jsonl' else 'row'} {offset}"


def _is_one_object(path: Path) -> bool:
    """Whether a `.json` file holds one object written over several lines, or on one with nothing after it."""
    if not path.name.lower().endswith(".json"):
        return False
    with path.open("rb") as stream:
        first = stream.readline(1 << 20).removeprefix(_BOM)
    try:
        return isinstance(parse_json(first), dict) and path.stat().st_size <= len(first) + 4
    except ValueError:
        return first.lstrip()[:1] == b"{" and first.strip() == b"{"


def _decoded(line: bytes, offset: int) -> Found | Broken:
    try:
        value = parse_json(line.removeprefix(_BOM).decode("utf-8"))
    except UnicodeDecodeError as error:
        return Broken(offset, "utf8", _not_utf8(error))
    except json.JSONDecodeError as error:
        cut = "" if line.rstrip().endswith(b"}") else "; the line ends inside the object: was the file cut short?"
        return Broken(offset, "json", f"broken JSON at column {error.colno}: {error.msg}{cut}")
    if not isinstance(value, dict):
        return Broken(offset, "json", f"expected an object, found {type(value).__name__}")
    return Found(offset, value)


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"byte 0x{error.object[error.start]:02x} is not UTF-8 ({error.reason}); {_CONVERT}"


def _read_lines(block: RecordBlock) -> Iterator[Found | Broken]:
    offset = block.start
    with block.path.open("rb") as stream:
        stream.seek(block.start)
        while offset < (block.stop or 0) and (line := stream.readline()):
            if line.strip():
                yield _decoded(line, offset)
            offset += len(line)


def _read_gzip(path: Path) -> Iterator[Found | Broken]:
    number = 0
    try:
        with gzip.open(path, "rb") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    yield _decoded(line, number)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}, after line {number}: not a whole gzip file ({error}); copy it again") from error


def _read_json(path: Path) -> Iterator[Found | Broken]:
    """A JSON array of records, an object with one such array in it, or a single record."""
    try:
        value = parse_json(path.read_bytes().removeprefix(_BOM).decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: {_not_utf8(error)}") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {error.lineno}: broken JSON at column {error.colno}: {error.msg}") from error
    if isinstance(value, dict):
        lists = [item for item in value.values() if isinstance(item, list) and item and isinstance(item[0], dict)]
        is_record = "messages" in value or "conversations" in value
        value = lists[0] if len(lists) == 1 and not is_record else [value]
    for number, record in enumerate(value):
        if isinstance(record, dict):
            yield Found(number, record)
        else:
            yield Broken(number, "json", f"expected an object, found {type(record).__name__}")


def _read_csv(path: Path) -> Iterator[Found | Broken]:
    csv.field_size_limit(1 << 27)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as stream:
        rows = csv.reader(stream, delimiter="\t" if path.suffix.lower() == ".tsv" else ",", strict=True)
        header: list[str] | None = None
        line = 1
        try:
            for row in rows:
                byte = next((ord(char) - 0xDC00 for cell in row for char in cell if "\udc80" <= char <= "\udcff"), None)
                if byte is not None:
                    yield Broken(line, "utf8", f"byte 0x{byte:02x} is not UTF-8; {_CONVERT}")
                elif header is None:
                    header = row
                elif len(row) != len(header):
                    yield Broken(
                        line, "csv", f"{len(row)} cells, the header has {len(header)}; quote cells with commas"
                    )
                else:
                    yield Found(line, dict(zip(header, row, strict=True)))
                line = rows.line_num + 1
        except csv.Error as error:
            yield Broken(line, "csv", f"broken CSV: {error}; the rest of the file cannot be read")


def _read_parquet(block: RecordBlock) -> Iterator[Found | Broken]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(block.path)
        groups = list(range(block.start, file.metadata.num_row_groups if block.stop is None else block.stop))
        row = sum(file.metadata.row_group(group).num_rows for group in range(block.start))
        for batch in file.iter_batches(batch_size=_ROWS, row_groups=groups):
            yield from _rows(batch, row)
            row += batch.num_rows
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{block.path} is not a whole parquet file: {error}; copy or write it again") from error


def _read_arrow(path: Path) -> Iterator[Found | Broken]:
    import pyarrow
    import pyarrow.ipc

    row = 0
    try:
        with pyarrow.memory_map(str(path)) as source:
            magic = source.read(6)
            source.seek(0)
            if magic == b"ARROW1":
                file = pyarrow.ipc.open_file(source)
                batches: Any = (file.get_batch(index) for index in range(file.num_record_batches))
            else:
                batches = pyarrow.ipc.open_stream(source)
            for batch in batches:
                for first in range(0, batch.num_rows, _ROWS):
                    yield from _rows(batch.slice(first, _ROWS), row + first)
                row += batch.num_rows
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}, after row {row}: not a whole arrow file ({error}); copy or write it again") from error


def _rows(batch: Any, first: int) -> Iterator[Found | Broken]:
    try:
        records = batch.to_pylist()
    except UnicodeDecodeError as error:
        yield Broken(first, "utf8", f"rows {first} to {first + batch.num_rows - 1}: {_not_utf8(error)}")
        return
    for number, record in enumerate(records):
        yield Found(first + number, _without_nulls(record))


def _without_nulls(value: Any) -> Any:
    """Tables give every object every field; a field that is null was not there."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value
