"""From records to a prepared store: rendered, measured and tokenised in processes, written in the records' order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loong_core.data.in_order import in_order
from loong_core.data.marks import mark
from loong_core.data.token_store import TokenWriter, published_folder, smallest_dtype
from loong_core.errors import UserError
from loong_llm.conversations.messages import BadSample
from loong_llm.conversations.preparation import BadSamples, PreparationCount, form_of_records
from loong_vlm.data import forms
from loong_vlm.data.encoding import Placed, VisionEncoder, VisionSample
from loong_vlm.data.forms import VisionForm
from loong_vlm.data.records import (
    BrokenRecord,
    VisionBlock,
    VisionKind,
    place,
    read_vision_records,
    vision_blocks,
)
from loong_vlm.data.store import MediaBlock, MediaWriter

OnPrepared = Callable[[str, PreparationCount], None]
"""Told, on rank 0, the source's path and how far its preparation has come."""

_EXAMPLES = 3


@dataclass(frozen=True)
class PreparedBlock:
    """A block's samples: marked ids `[tokens]` end to end, the length of each sample, and what each shows."""

    marked: NDArray[Any]
    lengths: NDArray[np.int64]
    media: MediaBlock
    count: PreparationCount


@dataclass(frozen=True)
class VisionRecipe:
    """What every block of a source is put through; sent to worker processes."""

    encoder: VisionEncoder
    form: VisionForm
    fields: Mapping[str, str] = field(default_factory=dict)
    bad_samples: BadSamples = "stop"

    def __call__(self, block: VisionBlock) -> PreparedBlock:
        """The samples of a block.

        Raises:
            UserError: a bad sample, if they are to stop the run; names file and line.
        """
        count = PreparationCount()
        samples: list[VisionSample] = []
        convert = forms.reader(self.form, self.fields)
        for record in read_vision_records(block):
            count.records += 1
            try:
                if isinstance(record, BrokenRecord):
                    raise BadSample(record.kind, record.message)
                conversation, media = convert(record.fields, record.folder)
                samples.extend(self.encoder.encode(conversation, media))
            except BadSample as bad:
                told = f"{place(block, record.where)}: {bad}"
                if self.bad_samples == "stop":
                    raise UserError(
                        f"{told}; or set data.bad_samples to skip, to leave such samples out and count them"
                    ) from bad
                count.left_out[bad.kind] += 1
                count.examples = [*count.examples, told][:_EXAMPLES]
        return _block(samples, count, self.encoder.vocab_size)


def _block(samples: Sequence[VisionSample], count: PreparationCount, vocab_size: int) -> PreparedBlock:
    dtype = smallest_dtype(2 * vocab_size)
    parts: list[NDArray[Any]] = []
    media: list[list[Placed]] = []
    for sample in samples:
        # What follows the last trained token has no part in the loss.
        stop = int(np.flatnonzero(sample.trained)[-1]) + 1
        parts.append(mark(sample.ids[:stop], sample.trained[:stop]).astype(dtype))
        media.append([placed for placed in sample.media if placed.stop <= stop])
        count.trained_tokens += int(sample.trained[1:].sum())
    lengths = np.array([len(part) for part in parts], np.int64)
    count.samples, count.tokens = len(parts), int(lengths.sum())
    marked = np.concatenate(parts) if parts else np.zeros(0, dtype)
    return PreparedBlock(marked, lengths, MediaBlock.of(media), count)


def source_form(
    files: Sequence[tuple[Path, VisionKind]],
    stated: VisionForm | None,
    fields: Mapping[str, str],
    media_root: str | None = None,
) -> VisionForm:
    """The form of a source: as stated, or that of the first record of every file.

    Raises:
        UserError: a form that is not known, files of unlike forms, or no readable record.
    """
    records = ((path, _first_record(path, kind, media_root)) for path, kind in files)
    asked = (
        "'messages', 'conversations', 'instruction' and 'output', or 'image' and 'caption'; tell which is which with "
        "fields, for example {images: pictures}"
    )
    return form_of_records(records, stated, fields, known=tuple(forms.FORMS), detect=forms.detect, asked=asked)


def _first_record(path: Path, kind: VisionKind, media_root: str | None) -> dict[str, Any] | None:
    for block in vision_blocks(path, kind, media_root):
        for record in read_vision_records(block):
            if not isinstance(record, BrokenRecord):
                return record.fields
    return None


def write_store(
    name: str,
    files: Sequence[tuple[Path, VisionKind]],
    folder: Path,
    recipe: VisionRecipe,
    *,
    media_root: str | None = None,
    workers: int = 1,
    on_prepared: OnPrepared | None = None,
) -> None:
    """Prepare a source into a folder, which appears when it is complete.

    Raises:
        UserError: what is wrong with the data; the folder then does not exist.
    """
    blocks: Iterator[VisionBlock] = (block for path, kind in files for block in vision_blocks(path, kind, media_root))
    count = PreparationCount()
    try:
        with published_folder(folder) as temporary:
            tokens, media = TokenWriter(temporary, 2 * recipe.encoder.vocab_size), MediaWriter(temporary)
            for _, done in in_order(blocks, recipe, workers=workers):
                tokens.add(done.marked, done.lengths, np.ones(len(done.lengths), np.bool_), 0)
                media.add(done.media)
                count.add(done.count)
                if on_prepared is not None:
                    on_prepared(name, count)
            tokens.finish(
                {
                    "kind": "vision conversations",
                    "encoder": recipe.encoder.fingerprint,
                    "form": recipe.form,
                    "files": [str(path) for path, _ in files],
                    "count": count.as_json(),
                    "media_digest": media.finish(),
                }
            )
    except OSError as error:
        raise UserError(f"{folder}: prepared samples cannot be written ({error}); set data.cache elsewhere") from error
