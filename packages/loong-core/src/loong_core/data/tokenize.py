"""From blocks of text to token ids, in order, in this process or in several.

In one process the tokenizer's own threads use all cores. With `workers`, each process reads, decodes and tokenises its
own blocks, which scales past the point where one Python interpreter is the limit; the result is the same.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from loong_core.data.documents import BLOCK_BYTES, Block, TextPiece, read_block
from loong_core.data.token_store import Ids, smallest_dtype
from loong_core.errors import UserError

_PIECES = 4096


class TextEncoder(Protocol):
    """What tokenising asks of a tokenizer. It is sent to worker processes, hence picklable."""

    vocab_size: int
    """Every id is below it."""
    prefix: tuple[int, ...]
    """Ids that a document begins with, before its text."""
    suffix: tuple[int, ...]
    """Ids that a document ends with: the end-of-document token."""
    fingerprint: str
    """Equal fingerprints mean equal ids for every text."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """The ids of each text, without prefix and suffix."""
        ...


@dataclass(frozen=True)
class TokenChunk:
    """Tokenised pieces of documents, end to end.

    Attributes:
        ids: `[tokens]`.
        lengths: `[pieces]` int64.
        ends: `[pieces]` bool, whether its document ends with the piece.
        text_bytes: UTF-8 bytes of the pieces' text.
        empty: how many documents without a single character were left out.
    """

    ids: Ids
    lengths: NDArray[np.int64]
    ends: NDArray[np.bool_]
    text_bytes: int
    empty: int


def tokenize(
    blocks: Iterable[Block], text_key: str, encoder: TextEncoder, *, workers: int = 1
) -> Iterator[tuple[Block, TokenChunk]]:
    """Tokenise blocks, yielding in their order; a document is prefix, text, suffix.

    Args:
        blocks: what to read.
        text_key: the field or column that holds a document's text.
        encoder: the tokenizer.
        workers: processes; 1 works in this one. Results do not depend on it.

    Raises:
        UserError: what `read_block` raises.
    """
    if workers <= 1:
        for block in blocks:
            for chunk in _encode_block(block, text_key, encoder):
                yield block, chunk
        return
    pool = _Workers(workers, text_key, encoder)
    try:
        yield from pool.run(blocks)
    finally:
        pool.stop()


class _Workers:
    """Processes that take blocks in turn, so that their answers come back in order by asking them in turn."""

    def __init__(self, count: int, text_key: str, encoder: TextEncoder) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes = []
        self._processes = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, text_key, encoder), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, blocks: Iterable[Block]) -> Iterator[tuple[Block, TokenChunk]]:
        pipes = itertools.cycle(self._pipes)
        waiting: deque[tuple[Block, Connection]] = deque()
        for block in blocks:
            pipe = next(pipes)
            pipe.send(block)
            waiting.append((block, pipe))
            if len(waiting) > 2 * len(self._pipes):
                yield from self._answer(*waiting.popleft())
        while waiting:
            yield from self._answer(*waiting.popleft())

    def _answer(self, block: Block, pipe: Connection) -> Iterator[tuple[Block, TokenChunk]]:
        try:
            answer: list[TokenChunk] | UserError = pipe.recv()
        except EOFError as error:
            raise RuntimeError(f"the process that tokenised {block.path} died; see its output above") from error
        if isinstance(answer, UserError):
            raise answer
        for chunk in answer:
            yield block, chunk

    def stop(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.terminate()
            process.join()


def _serve(pipe: Connection, text_key: str, encoder: TextEncoder) -> None:
    """A worker process: blocks in, chunks out, until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers itself
    # One thread a process: the processes already fill the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        while True:
            block = pipe.recv()
            try:
                answer: list[TokenChunk] | UserError = list(_encode_block(block, text_key, encoder))
            except UserError as error:
                answer = error
            pipe.send(answer)
    except (EOFError, BrokenPipeError):
        return


def _encode_block(block: Block, text_key: str, encoder: TextEncoder) -> Iterator[TokenChunk]:
    for pieces in batches(read_block(block, text_key)):
        yield encode_pieces(pieces, encoder)


def batches(pieces: Iterable[TextPiece]) -> Iterator[list[TextPiece]]:
    """Batches of about `BLOCK_BYTES`: a row group or a gzipped file may be far larger than a block should be."""
    batch: list[TextPiece] = []
    held = 0
    for piece in pieces:
        batch.append(piece)
        held += len(piece.text)
        if held >= BLOCK_BYTES or len(batch) >= _PIECES:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


def encode_pieces(pieces: list[TextPiece], encoder: TextEncoder) -> TokenChunk:
    """Tokenise pieces, giving documents their prefix and suffix. A document without text has no tokens at all."""
    dtype = smallest_dtype(encoder.vocab_size)
    prefix, suffix = np.array(encoder.prefix, dtype), np.array(encoder.suffix, dtype)
    parts: list[Ids] = []
    lengths = np.zeros(len(pieces), np.int64)
    empty = 0
    for index, (piece, ids) in enumerate(zip(pieces, encoder.encode_batch([piece.text for piece in pieces]))):
        if not piece.text and piece.starts and piece.ends:
            empty += 1
            continue
        own = [
            part
            for part, wanted in ((prefix, piece.starts), (np.array(ids, dtype), True), (suffix, piece.ends))
            if wanted
        ]
        parts.extend(own)
        lengths[index] = sum(map(len, own))
    flat: Any = np.concatenate(parts) if parts else np.zeros(0, dtype)
    ends = np.array([piece.ends for piece in pieces], dtype=bool)
    return TokenChunk(flat, lengths, ends, sum(len(piece.text.encode("utf-8")) for piece in pieces), empty)
