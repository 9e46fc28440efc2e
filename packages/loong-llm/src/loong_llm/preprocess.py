"""Text to Megatron's `.bin`/`.idx`, ahead of training: what `loong-llm preprocess` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from loong_core.data.corpus import OnProgress, ProgressTracker
from loong_core.data.documents import blocks
from loong_core.data.indexed import IndexedWriter
from loong_core.data.sources import SourceFile, indexed_paths, resolve
from loong_core.data.tokenize import TextEncoder, tokenize
from loong_core.errors import UserError


@dataclass(frozen=True)
class Prepared:
    """What was written.

    Attributes:
        prefix: path of the pair without `.bin` and `.idx`; a run file's `data.train` takes it.
        documents: how many were written.
        empty_documents: how many had no text and were left out.
        tokens: their tokens, first and last of each document included.
        seconds: how long it took.
    """

    prefix: Path
    documents: int
    empty_documents: int
    tokens: int
    seconds: float


def preprocess(
    inputs: Sequence[str],
    output: Path,
    encoder: TextEncoder,
    *,
    text_key: str = "text",
    workers: int = 1,
    overwrite: bool = False,
    on_progress: OnProgress | None = None,
) -> Prepared:
    """Tokenise documents into one pair; the same inputs make the same bytes, whatever `workers` is.

    Args:
        inputs: files, folders or globs of text, read in this order.
        output: prefix of the pair; the files appear there only when they are complete.
        encoder: the tokenizer.
        text_key: field or column that holds a document's text.
        workers: processes; with 1, the tokenizer's own threads use all cores.
        overwrite: whether to replace a pair that is there.
        on_progress: called now and then.

    Raises:
        UserError: what is wrong with the inputs or the output; nothing is left behind.
    """
    began = monotonic()
    output = output.with_suffix("") if output.suffix in (".bin", ".idx") else output
    for path in indexed_paths(output):
        if path.exists() and not overwrite:
            raise UserError(f"{path} is there already; choose another output, or give --overwrite to replace it")
    files: list[SourceFile] = [file for path in inputs for file in resolve(path)]
    tracker = ProgressTracker(", ".join(inputs), files, on_progress)
    try:
        with IndexedWriter(output, encoder.vocab_size) as writer:
            for block, chunk in tokenize(blocks(files), text_key, encoder, workers=workers):
                writer.add(chunk.ids, chunk.lengths, chunk.ends)
                tracker.advance(block, int(chunk.ends.sum()), chunk.empty, len(chunk.ids))
            if not tracker.documents:
                raise UserError(f"{', '.join(inputs)}: not one document with text in it; nothing was written")
    except OSError as error:
        raise UserError(f"{output}.bin cannot be written: {error.strerror or error}") from error
    return Prepared(output, tracker.documents, tracker.empty, tracker.tokens, monotonic() - began)
