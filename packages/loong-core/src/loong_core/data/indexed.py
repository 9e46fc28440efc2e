"""Megatron's `.bin`/`.idx` pair: read and written by megatron-core itself, checked for torn files before.

megatron-core is imported when the first pair is opened (its package imports the whole library, about 5 s). The checks
of sizes need only the header of the `.idx` file (34 bytes: magic, version, type code, sequences, documents), so `check`
can tell torn files without it.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loong_core.data.sources import indexed_paths
from loong_core.data.token_store import Ids, TokenStore, smallest_dtype
from loong_core.errors import UserError
from loong_core.parallel.megatron_import import import_megatron

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES: dict[int, Any] = {1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 8: np.uint16}


def check_pair(prefix: Path) -> tuple[int, int]:
    """Numbers of sequences and documents of a pair whose files are whole.

    Raises:
        UserError: a missing or foreign file, or one shorter than the other says; names both files and sizes.
    """
    data, index = indexed_paths(prefix)
    for path in (data, index):
        if not path.is_file():
            raise UserError(f"{path} is missing; a .bin and a .idx file belong together")
    with index.open("rb") as stream:
        head = stream.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise UserError(f"{index} is not a Megatron index file ({len(head)} bytes of header); run preprocess again")
    _, version, code, sequences, bounds = _HEADER.unpack(head)
    if version != 1 or code not in _TYPES:
        raise UserError(f"{index}: version {version}, type code {code}; known are version 1 and codes {sorted(_TYPES)}")
    expected = _HEADER.size + sequences * (4 + 8) + bounds * 8
    actual = index.stat().st_size
    if actual != expected:
        why = "it was cut short" if actual < expected else "its header is damaged, or it holds something else"
        raise UserError(
            f"{index} holds {actual:,} bytes, its header says {expected:,} ({sequences:,} sequences); {why}: run "
            "preprocess again or copy it again"
        )
    itemsize = np.dtype(_TYPES[code]).itemsize
    lengths = np.fromfile(index, dtype="<i4", count=sequences, offset=_HEADER.size)
    pointers = np.fromfile(index, dtype="<i8", count=sequences, offset=_HEADER.size + sequences * 4)
    documents = np.fromfile(index, dtype="<i8", count=bounds, offset=_HEADER.size + sequences * 12)
    if what := _damage(lengths, pointers // itemsize, documents):
        raise UserError(f"{index} is damaged: {what}; run preprocess again or copy it again")
    wanted, found = int(lengths.sum(dtype=np.int64)) * itemsize, data.stat().st_size
    if found != wanted:
        verb = "is cut short" if found < wanted else "belongs to another index"
        raise UserError(
            f"{data} holds {found:,} bytes, {index.name} says {wanted:,} ({wanted // itemsize:,} tokens of {itemsize} "
            f"bytes): the file {verb}; run preprocess again or copy both files again"
        )
    return sequences, bounds - 1


def _damage(lengths: NDArray[Any], starts: NDArray[Any], documents: NDArray[Any]) -> str | None:
    """What the numbers of an index contradict each other in; None if they agree.

    Args:
        lengths: tokens of each sequence.
        starts: where each sequence begins in the data, in tokens.
        documents: the sequence that each document begins with, and at the end their number.
    """
    if (lengths < 0).any():
        return f"sequence {int(np.argmax(lengths < 0)):,} has {int(lengths.min()):,} tokens"
    expected = np.cumsum(lengths, dtype=np.int64) - lengths
    if (starts != expected).any():
        first = int(np.argmax(starts != expected))
        return f"sequence {first:,} begins at token {int(starts[first]):,}, the one before ends at {expected[first]:,}"
    if not len(documents) or documents[0] != 0 or (np.diff(documents) < 0).any() or documents[-1] > len(lengths):
        return f"its marks of documents do not rise from 0 to its {len(lengths):,} sequences"
    return None


def open_indexed(prefix: Path) -> TokenStore:
    """A pair as a store; a document is what lies between two document marks, however many sequences it has.

    Raises:
        UserError: see `check_pair`.
    """
    sequences, _ = check_pair(prefix)
    import_megatron()
    from megatron.core.datasets.indexed_dataset import IndexedDataset

    dataset = IndexedDataset(str(prefix))
    lengths = np.asarray(dataset.sequence_lengths, dtype=np.int64)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    bounds = ends[np.asarray(dataset.document_indices)]
    if sequences and bounds[-1] != ends[-1]:
        raise UserError(
            f"{prefix}.idx marks documents up to token {bounds[-1]:,} of {ends[-1]:,}; the pair was written without a "
            "last end of document: run preprocess again"
        )
    # Sequences lie end to end in the file, so one read (of a memory map: nothing is copied) gives them all.
    tokens: Ids = dataset.bin_reader.read(dtype=dataset.index.dtype, count=int(ends[-1]), offset=0)
    filled = np.diff(bounds) > 0
    digest = hashlib.sha256(indexed_paths(prefix)[1].read_bytes()).hexdigest()
    return TokenStore(
        str(prefix),
        tokens,
        bounds[:-1][filled],
        np.diff(bounds)[filled],
        digest,
        empty_documents=int((~filled).sum()),
        owner=dataset,
    )


class IndexedWriter:
    """Writes a pair with megatron-core's builder; both files get their names only when they are complete."""

    def __init__(self, prefix: Path, vocab_size: int) -> None:
        import_megatron()
        from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder

        self._prefix = prefix
        self._temporary = prefix.with_name(f".{prefix.name}.partial")
        prefix.parent.mkdir(parents=True, exist_ok=True)
        self._dtype = smallest_dtype(vocab_size)
        self._builder = IndexedDatasetBuilder(str(indexed_paths(self._temporary)[0]), dtype=self._dtype.type)
        self._open_pieces: list[Ids] = []

    def __enter__(self) -> IndexedWriter:
        """Itself."""
        return self

    def add(self, ids: Ids, lengths: NDArray[np.int64], ends: NDArray[np.bool_]) -> None:
        """Append pieces of documents (as `TokenWriter.add`); a document becomes one sequence."""
        import torch

        position = 0
        for length, document_ends in zip(lengths.tolist(), ends.tolist()):
            piece = ids[position : position + length]
            position += length
            self._open_pieces.append(piece)
            if document_ends:
                whole = np.concatenate(self._open_pieces) if len(self._open_pieces) > 1 else piece
                self._open_pieces = []
                if len(whole):
                    self._builder.add_item(torch.from_numpy(np.ascontiguousarray(whole)))
                    self._builder.end_document()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish the pair, or remove what was written if the body failed."""
        written, wanted = indexed_paths(self._temporary), indexed_paths(self._prefix)
        if kind is None:
            self._builder.finalize(str(written[1]))
            # The index comes last: a .bin without its .idx is not taken for a data set.
            wanted[1].unlink(missing_ok=True)
            for source, target in zip(written, wanted):
                source.rename(target)
            return
        self._builder.data_file.close()  # type: ignore[union-attr] - a file, whatever its annotation says
        for path in written:
            path.unlink(missing_ok=True)
