"""Conversations prepared ahead of training: a file at a time, so that what was done is not done again.

Each file of the sources becomes a part, a folder of its own with its marked tokens; when all are there they are
joined, in the files' order, to the one folder that `data.train` names. A command that was ended leaves its finished
parts, which the next one with the same inputs and the same encoder takes up. The joined folder is the same, byte for
byte, however many processes prepared it and however often it was interrupted.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from loong_core.data.token_store import TokenWriter, open_store, published_folder
from loong_core.errors import UserError
from loong_core.json_text import parse_json
from loong_llm.conversations.corpus import ConversationSource, prepare_files
from loong_llm.conversations.encoding import ConversationEncoder
from loong_llm.conversations.preparation import BadSamples, PreparationCount, source_format
from loong_llm.conversations.records import FileKind, record_files

_CHUNK = 1 << 22


def prepare_shards(
    sources: Sequence[ConversationSource],
    folder: Path,
    encoder: ConversationEncoder,
    *,
    bad_samples: BadSamples = "stop",
    workers: int = 1,
) -> tuple[PreparationCount, int]:
    """Prepare sources into one folder.

    Args:
        sources: in this order; their weights are not heeded.
        folder: where it is to appear, complete.
        encoder: tokenizer and template.
        bad_samples: whether a sample that cannot be trained on stops the command or is left out.
        workers: processes.

    Returns:
        What became of the records, and how many parts an earlier command had made.

    Raises:
        UserError: what is wrong with the data; the folder then does not exist, the parts before the fault do.
    """
    parts = folder.with_name(f".{folder.name}.parts")
    made: list[Path] = []
    before = 0
    for source in sources:
        files = record_files(source.path)
        form = source_format(files, source.format, source.fields)
        for path, kind in files:
            part = parts / _key(path, kind, form, source, encoder, bad_samples)
            if (part / "store.json").is_file():
                before += 1
            else:
                prepare_files(source, [(path, kind)], part, encoder, form, bad_samples, workers)
            made.append(part)
    count = PreparationCount()
    try:
        with published_folder(folder) as temporary:
            writer = TokenWriter(temporary, 2 * encoder.vocab_size)
            names = []
            for part in made:
                store = open_store(part, str(part), verify=False)
                described = parse_json((part / "store.json").read_text(encoding="utf-8"))["made_from"]
                count.add(PreparationCount.from_json(described["count"]))
                names += described["files"]
                for first in range(0, len(store), _CHUNK):
                    lengths = store.lengths[first : first + _CHUNK]
                    start = int(store.starts[first])
                    ids = store.tokens[start : start + int(lengths.sum())]
                    writer.add(ids, lengths, np.ones(len(lengths), np.bool_), 0)
            if not count.samples:
                why = count.left_out_text() or "there is not one record"
                raise UserError(f"{folder}: no sample to train on: {why}; nothing was written")
            writer.finish(
                {"kind": "conversations", "encoder": encoder.fingerprint, "files": names, "count": count.as_json()}
            )
    except OSError as error:
        raise UserError(f"{folder} cannot be written: {error.strerror or error}") from error
    shutil.rmtree(parts, ignore_errors=True)
    return count, before


def _key(
    path: Path,
    kind: FileKind,
    form: str,
    source: ConversationSource,
    encoder: ConversationEncoder,
    bad_samples: BadSamples,
) -> str:
    """Name of a file's part: of its content and of everything that decides what becomes of it."""
    with path.open("rb") as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    parts = [1, encoder.fingerprint, form, dict(source.fields), bad_samples, kind, path.suffix, content]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]
