"""Parquet files and arrow files (those of a folder saved by `datasets` included): one document a row.

pyarrow is imported when the first such file is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loong_core.errors import UserError

_ROWS = 1024


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError as error:
        raise UserError("parquet and arrow files need pyarrow; pip install 'loong-core[arrow]'") from error
    return pyarrow


def _open_parquet(path: Path) -> Any:
    pyarrow = _pyarrow()
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path} is not a whole parquet file: {error}; copy or write it again") from error


def parquet_bounds(path: Path, block_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of row groups that hold about `block_bytes` each."""
    metadata = _open_parquet(path).metadata
    start, held = 0, 0
    for group in range(metadata.num_row_groups):
        held += metadata.row_group(group).total_byte_size
        if held >= block_bytes or group == metadata.num_row_groups - 1:
            yield start, group + 1
            start, held = group + 1, 0


def read_parquet(path: Path, start: int, stop: int | None, text_key: str) -> Iterator[str]:
    """The texts of row groups `start` to `stop`.

    Raises:
        UserError: a damaged file, no column `text_key`, a row without text; names file and row.
    """
    pyarrow = _pyarrow()
    file = _open_parquet(path)
    _check_column(path, file.schema_arrow, text_key)
    groups = range(start, file.metadata.num_row_groups if stop is None else stop)
    row = sum(file.metadata.row_group(group).num_rows for group in range(start))
    try:
        for batch in file.iter_batches(batch_size=_ROWS, row_groups=list(groups), columns=[text_key]):
            yield from _texts(path, batch.column(0), row, text_key)
            row += batch.num_rows
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}, after row {row}: {error}; copy or write the file again") from error


def read_arrow(path: Path, text_key: str) -> Iterator[str]:
    """The texts of an arrow file, in stream or in file format.

    Raises:
        UserError: a damaged file, no column `text_key`, a row without text; names file and row.
    """
    pyarrow = _pyarrow()
    row = 0
    try:
        with pyarrow.memory_map(str(path)) as source:
            if source.read(6) == b"ARROW1":
                source.seek(0)
                file = pyarrow.ipc.open_file(source)
                batches = (file.get_batch(index) for index in range(file.num_record_batches))
                schema = file.schema
            else:
                source.seek(0)
                batches = pyarrow.ipc.open_stream(source)
                schema = batches.schema
            _check_column(path, schema, text_key)
            for batch in batches:
                column = batch.column(schema.get_field_index(text_key))
                for first in range(0, batch.num_rows, _ROWS):
                    yield from _texts(path, column.slice(first, _ROWS), row + first, text_key)
                row += batch.num_rows
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise UserError(f"{path}, after row {row}: not a whole arrow file ({error}); copy or write it again") from error


def _check_column(path: Path, schema: Any, text_key: str) -> None:
    types = _pyarrow().types
    if text_key not in schema.names:
        names = ", ".join(repr(name) for name in schema.names[:8]) or "none"
        raise UserError(
            f"{path}: no column {text_key!r}; its columns are {names}; set data.text_key to the one that holds the text"
        )
    kind = schema.field(text_key).type
    value = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)):
        raise UserError(f"{path}: column {text_key!r} holds {kind}, expected strings")


def _texts(path: Path, column: Any, first_row: int, text_key: str) -> Iterator[str]:
    try:
        texts = column.to_pylist()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, rows {first_row} to {first_row + len(column) - 1}: text is not UTF-8") from error
    for offset, text in enumerate(texts):
        if text is None:
            raise UserError(f"{path}, row {first_row + offset}: {text_key!r} is null; drop such rows first")
        yield text
