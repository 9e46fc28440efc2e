"""Plain text: a file is one document, byte for byte as it is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from loong_core.errors import UserError


def block_bounds(path: Path, block_bytes: int) -> Iterator[tuple[int, int | None]]:
    """Where to cut a file, as byte ranges; the last reaches to the file's end (None).

    Cuts fall only between two lines of which the second begins with a visible character: tokenizers keep runs of
    white space together, so no token of theirs is cut.
    """
    size = path.stat().st_size
    start = 0
    with path.open("rb") as stream:
        while size - start > block_bytes:
            stream.seek(start + block_bytes)
            stop = _next_cut(stream)
            if stop is None:
                break
            yield start, stop
            start = stop
    if size:
        yield start, None


def _next_cut(stream: BinaryIO) -> int | None:
    stream.readline()
    while line := stream.readline():
        if not line[:4].decode("utf-8", errors="ignore")[:1].isspace():
            return stream.tell() - len(line)
    return None


def read(path: Path, start: int, stop: int | None) -> str:
    """The text of bytes `start` to `stop`; a byte order mark at the file's beginning is no text.

    Raises:
        UserError: the bytes are not UTF-8.
    """
    with path.open("rb") as stream:
        stream.seek(start)
        data = stream.read(-1 if stop is None else stop - start)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(not_utf8(path, start, error)) from error
    return text.removeprefix("\ufeff") if start == 0 else text


def line_number(path: Path, offset: int) -> int:
    """Number, from 1, of the line that holds byte `offset`; read only when an error is told."""
    count, left = 1, offset
    with path.open("rb") as stream:
        while left > 0 and (data := stream.read(min(left, 1 << 20))):
            count += data.count(b"\n")
            left -= len(data)
    return count


def not_utf8(path: Path, start: int, error: UnicodeDecodeError) -> str:
    """What to tell of bytes that are not UTF-8; `start` is the byte offset at which the decoded data begin."""
    offset = start + error.start
    found = f"0x{error.object[error.start]:02x}"
    return (
        f"{path}, line {line_number(path, offset)}: byte {found} at offset {offset} is not UTF-8 ({error.reason}); "
        "convert the file to UTF-8, for example with iconv"
    )
