"""Documents of text files, in blocks that can be read apart from each other.

A file is cut into blocks of about a mebibyte without being read, so that worker processes can read and tokenise them
in parallel while the result stays in the files' order. A block yields pieces of documents: one piece is a whole
document, save in long text files, which are cut between lines so that memory stays flat.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from loong_core.data import arrow_tables, json_lines, text_files
from loong_core.data.sources import Format, SourceFile
from loong_core.errors import UserError

BLOCK_BYTES = 1 << 20
"""How much text a block holds, about: large enough to keep tokenizer threads busy, small enough to hold many."""


@dataclass(frozen=True)
class TextPiece:
    """A stretch of one document's text.

    Attributes:
        text: as written in the file.
        starts: whether the document begins here.
        ends: whether it ends here.
    """

    text: str
    starts: bool = True
    ends: bool = True


@dataclass(frozen=True)
class Block:
    """Part of a file: bytes `start` to `stop` of text and JSON lines, row groups of parquet, batches of arrow.

    `stop` is None where the part reaches to the file's end.
    """

    path: Path
    format: Format
    start: int = 0
    stop: int | None = None


def blocks(files: Iterable[SourceFile]) -> Iterator[Block]:
    """The blocks of text files in reading order.

    Raises:
        UserError: a file has no text (`indexed`) or cannot be opened.
    """
    for file in files:
        try:
            if file.format == "text":
                bounds = text_files.block_bounds(file.path, BLOCK_BYTES)
            elif file.format == "jsonl":
                bounds = json_lines.block_bounds(file.path, BLOCK_BYTES)
            elif file.format == "parquet":
                bounds = arrow_tables.parquet_bounds(file.path, BLOCK_BYTES)
            elif file.format == "arrow":
                bounds = iter([(0, None)])
            else:
                raise UserError(f"{file.path}.bin holds token ids, not text; it needs no tokenising")
            for start, stop in bounds:
                yield Block(file.path, file.format, start, stop)
        except OSError as error:
            raise UserError(f"{file.path} cannot be read: {error.strerror or error}") from error


def read_block(block: Block, text_key: str) -> Iterator[TextPiece]:
    """The pieces of a block, in order.

    Args:
        block: which part of which file.
        text_key: the field (JSON) or column (parquet, arrow) that holds a document's text.

    Raises:
        UserError: broken JSON, bytes that are not UTF-8, a missing or wrong field; names file and line or row.
    """
    if block.format == "text":
        text = text_files.read(block.path, block.start, block.stop)
        yield TextPiece(text, starts=block.start == 0, ends=block.stop is None)
        return
    if block.format == "jsonl":
        texts = json_lines.read(block.path, block.start, block.stop, text_key)
    elif block.format == "parquet":
        texts = arrow_tables.read_parquet(block.path, block.start, block.stop, text_key)
    else:
        texts = arrow_tables.read_arrow(block.path, text_key)
    for text in texts:
        yield TextPiece(text)
