"""Token ids of documents, laid end to end in one array, most often memory-mapped.

`TokenStore` is what everything after tokenising reads. On disk it is a folder of three files, written by `TokenWriter`:
`tokens.bin` (the ids, little-endian), `bounds.npy` (int64, where each document begins and the last ends) and
`store.json` (what the ids were made from, and their digest). A folder has its name only when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loong_core.errors import UserError
from loong_core.json_text import parse_json

Ids = NDArray[np.unsignedinteger[Any] | np.signedinteger[Any]]

_ABANDONED_SECONDS = 3600.0


def smallest_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest id type that holds every id below `vocab_size` and that Megatron's `.idx` can name."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<i4")


@dataclass(frozen=True)
class TokenStore:
    """Documents as token ids.

    Attributes:
        name: what to call it in messages.
        tokens: `[all tokens]`, ids of all documents end to end.
        starts: `[documents]` int64, first token of each document.
        lengths: `[documents]` int64, tokens in each document.
        digest: identity of the content; equal digests mean equal documents in equal order.
        text_bytes: UTF-8 bytes of the text that the ids stand for; None where that is not known.
        empty_documents: how many documents without text were left out.
        owner: what must live as long as `tokens` does (a reader whose memory map closes with it).
    """

    name: str
    tokens: Ids
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    digest: str
    text_bytes: int | None = None
    empty_documents: int = 0
    owner: object = None

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    @property
    def total_tokens(self) -> int:
        """Tokens in all documents."""
        return int(self.lengths.sum())

    def document(self, index: int) -> Ids:
        """`[length]`, the ids of one document."""
        start = self.starts[index]
        return self.tokens[start : start + self.lengths[index]]

    def select(self, documents: NDArray[np.int64], label: str) -> TokenStore:
        """The store that holds only the documents of these indices, in this order; no ids are copied."""
        digest = hashlib.sha256(self.digest.encode() + np.ascontiguousarray(documents).tobytes()).hexdigest()
        return replace(
            self,
            name=f"{self.name} ({label})",
            starts=self.starts[documents],
            lengths=self.lengths[documents],
            digest=digest,
            text_bytes=None,
            empty_documents=0,
        )

    @staticmethod
    def from_documents(documents: list[list[int]], vocab_size: int, name: str = "documents") -> TokenStore:
        """A store in memory."""
        lengths = np.array([len(document) for document in documents], dtype=np.int64)
        tokens = np.concatenate([np.asarray(document, smallest_dtype(vocab_size)) for document in documents])
        return TokenStore.from_bounds(name, tokens, _bounds(lengths))

    @staticmethod
    def from_bounds(name: str, tokens: Ids, bounds: NDArray[np.int64]) -> TokenStore:
        """A store of `tokens` in memory; `bounds`, `[documents + 1]`, says where documents begin and the last ends."""
        return _from_bounds(name, tokens, bounds, _digest(tokens, bounds))


class TokenWriter:
    """Writes a store in pieces; memory holds the documents' lengths only."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self.folder = folder
        self.dtype = smallest_dtype(vocab_size)
        self.text_bytes = 0
        self._lengths: list[NDArray[np.int64]] = []
        self._open_document = 0
        self._hash = hashlib.sha256()
        self._stream = (folder / "tokens.bin").open("wb")

    def add(self, ids: Ids, lengths: NDArray[np.int64], ends: NDArray[np.bool_], text_bytes: int) -> None:
        """Append pieces of documents.

        Args:
            ids: `[tokens]`, the pieces end to end.
            lengths: `[pieces]`, tokens in each.
            ends: `[pieces]`, whether its document ends with the piece.
            text_bytes: UTF-8 bytes of the pieces' text.
        """
        data = np.ascontiguousarray(ids, dtype=self.dtype).data
        self._hash.update(data)
        self._stream.write(data)
        self.text_bytes += text_bytes
        totals = np.cumsum(lengths)
        closed = totals[ends]
        if len(closed):
            documents = np.diff(closed, prepend=0)
            documents[0] += self._open_document
            self._lengths.append(documents)
            self._open_document = 0
        self._open_document += int(totals[-1] - (closed[-1] if len(closed) else 0)) if len(totals) else 0

    def finish(self, made_from: dict[str, Any]) -> None:
        """Write the bounds and the description, and force everything to disk.

        Args:
            made_from: json-able account of the tokenizer and files, kept for whoever looks into the folder.
        """
        self._sync_and_close(self._stream)
        lengths = np.concatenate(self._lengths) if self._lengths else np.zeros(0, np.int64)
        bounds = _bounds(lengths)
        with (self.folder / "bounds.npy").open("wb") as stream:
            np.save(stream, bounds, allow_pickle=False)
            stream.flush()
            os.fsync(stream.fileno())
        self._hash.update(bounds.tobytes())
        description = {
            "version": 1,
            "dtype": self.dtype.str,
            "documents": len(lengths),
            "tokens": int(bounds[-1]),
            "text_bytes": self.text_bytes,
            "digest": self._hash.hexdigest(),
            "made_from": made_from,
        }
        with (self.folder / "store.json").open("w", encoding="utf-8") as stream:
            json.dump(description, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())

    @staticmethod
    def _sync_and_close(stream: Any) -> None:
        stream.flush()
        os.fsync(stream.fileno())
        stream.close()


@contextmanager
def published_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder`, renamed to it when the body ends well and removed when it does not.

    If `folder` appears meanwhile (another run built the same content), that one stays and ours is dropped. What killed
    runs left half-written goes once nothing has been written to it for an hour.
    """
    for other in folder.parent.glob(f".{folder.name}.*.partial"):
        with contextlib.suppress(OSError):
            if time.time() - max(path.stat().st_mtime for path in [other, *other.iterdir()]) > _ABANDONED_SECONDS:
                shutil.rmtree(other)
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def open_store(folder: Path, name: str, *, verify: bool, digest: str | None = None) -> TokenStore:
    """Open a store's folder by memory-mapping it.

    Args:
        folder: what `TokenWriter` wrote.
        name: what to call it in messages.
        verify: read everything once and compare with the digest written with it.
        digest: the digest it must have, if that is known.

    Raises:
        UserError: the folder is incomplete or damaged; names file and sizes. Deleting it makes the next start rebuild.
    """
    remedy = f"delete the folder {folder}, and the next start builds it again"
    try:
        description = parse_json((folder / "store.json").read_text(encoding="utf-8"))
        bounds = np.load(folder / "bounds.npy", allow_pickle=False)
        dtype, count = np.dtype(description["dtype"]), int(description["tokens"])
        size = (folder / "tokens.bin").stat().st_size
    except Exception as error:  # numpy parses a header as Python, so a damaged one may raise whatever a parser does
        raise UserError(f"{folder} is no readable token store ({error}); {remedy}") from error
    if size != count * dtype.itemsize or int(bounds[-1]) != count or len(bounds) != description["documents"] + 1:
        raise UserError(
            f"{folder / 'tokens.bin'} holds {size:,} bytes, store.json says {count:,} tokens of {dtype.itemsize} bytes "
            f"in {description['documents']:,} documents; {remedy}"
        )
    tokens = np.memmap(folder / "tokens.bin", dtype=dtype, mode="r") if count else np.zeros(0, dtype)
    if verify and _digest(tokens, bounds) != description["digest"]:
        raise UserError(f"{folder / 'tokens.bin'} is not what was written there (its digest differs); {remedy}")
    if digest is not None and digest != description["digest"]:
        raise UserError(
            f"{folder} holds other tokens here (digest {description['digest'][:12]}) than on rank 0 ({digest[:12]}); "
            "set data.cache to a folder that all ranks share"
        )
    return _from_bounds(name, tokens, bounds, description["digest"], description["text_bytes"])


def _bounds(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    bounds = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def _from_bounds(
    name: str, tokens: Ids, bounds: NDArray[np.int64], digest: str, text_bytes: int | None = None
) -> TokenStore:
    lengths = np.diff(bounds)
    filled = lengths > 0
    empty = int((~filled).sum())
    return TokenStore(name, tokens, bounds[:-1][filled], lengths[filled], digest, text_bytes, empty)


def _digest(tokens: Ids, bounds: NDArray[np.int64]) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(tokens), 1 << 24):
        digest.update(np.ascontiguousarray(tokens[start : start + (1 << 24)]).data)
    digest.update(bounds.tobytes())
    return digest.hexdigest()
