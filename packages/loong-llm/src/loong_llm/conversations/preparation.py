"""From files of conversations to a store of marked token ids, in order, in this process or in several.

A block of records is read, brought to messages, rendered and tokenised by one process; results are written in the
blocks' order, so that the store does not depend on how many processes there were. Memory holds a few blocks. While the
tokenizer, which needs no Python, works on some texts in a thread of its own, the next are rendered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from loong_core.data.in_order import in_order
from loong_core.data.marks import mark
from loong_core.data.token_store import smallest_dtype
from loong_core.errors import UserError
from loong_llm.conversations import formats
from loong_llm.conversations.encoding import ConversationEncoder, EncodedSample
from loong_llm.conversations.formats import FormatName
from loong_llm.conversations.messages import BadSample
from loong_llm.conversations.records import Broken, FileKind, RecordBlock, place, read_records, record_blocks
from loong_llm.conversations.rendering import RenderedText

BadSamples = Literal["stop", "skip"]
"""What a sample that cannot be trained on does to the run: it stops it, or is left out and counted."""

_BATCH = 256
_EXAMPLES = 3


@dataclass(frozen=True)
class Recipe:
    """What every block of a source is put through; sent to worker processes."""

    encoder: ConversationEncoder
    format: FormatName
    fields: Mapping[str, str] = field(default_factory=dict)
    bad_samples: BadSamples = "stop"

    def __call__(self, block: RecordBlock) -> Prepared:
        """The samples of a block."""
        return _prepare_block(block, self)


@dataclass
class PreparationCount:
    """What became of a source's records.

    Attributes:
        records: how many were read.
        samples: how many samples they made.
        tokens: tokens of the samples.
        trained_tokens: tokens that are trained on.
        left_out: records left out, by reason.
        examples: the first few of them, with file and line.
    """

    records: int = 0
    samples: int = 0
    tokens: int = 0
    trained_tokens: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def add(self, other: PreparationCount) -> None:
        """Add another block's."""
        self.records += other.records
        self.samples += other.samples
        self.tokens += other.tokens
        self.trained_tokens += other.trained_tokens
        self.left_out.update(other.left_out)
        self.examples = (self.examples + other.examples)[:_EXAMPLES]

    def as_json(self) -> dict[str, Any]:
        """For the store's description."""
        return {**vars(self), "left_out": dict(self.left_out)}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> PreparationCount:
        """Back from the store's description."""
        return PreparationCount(**{**values, "left_out": Counter(values["left_out"])})

    def left_out_text(self) -> str:
        """What was left out and why, for people; empty if nothing was."""
        if not self.left_out:
            return ""
        reasons = ", ".join(f"{count:,} {_REASONS.get(kind, kind)}" for kind, count in self.left_out.most_common())
        return (
            f"{self.left_out.total():,} of {self.records:,} records were left out ({reasons}), the first: "
            f"{self.examples[0]}"
        )


_REASONS = {
    "json": "broken JSON",
    "csv": "broken CSV",
    "utf8": "not UTF-8",
    "roles": "with roles out of order",
    "fields": "with missing or wrong fields",
    "empty": "with an empty message",
    "media": "with images or sound",
    "tools": "with a broken tool call",
    "template": "that the chat template refuses",
    "untrained": "without a trained token",
    "placeholders": "with more or fewer places for images than images",
    "unreadable": "with images that cannot be read",
    "tar": "with an unreadable tar",
}


@dataclass(frozen=True)
class Prepared:
    """A block's samples, end to end: marked ids `[tokens]`, and the length of each sample."""

    marked: NDArray[Any]
    lengths: NDArray[np.int64]
    count: PreparationCount


def source_format(
    files: Sequence[tuple[Path, FileKind]], stated: FormatName | None, fields: Mapping[str, str]
) -> FormatName:
    """The format of a source: as stated, or that of the first record of every file.

    Raises:
        UserError: a format that is not known, files of unlike formats, or no readable record.
    """
    records = ((path, first_record(path, kind)) for path, kind in files)
    asked = (
        "'messages', 'conversations', or 'instruction' and 'output'; tell which is which with fields, for example "
        "{instruction: question, output: answer}"
    )
    return form_of_records(records, stated, fields, known=tuple(formats.FORMATS), detect=formats.detect, asked=asked)


def form_of_records[Form: str](
    records: Iterable[tuple[Path, Mapping[str, Any] | None]],
    stated: Form | None,
    fields: Mapping[str, str],
    *,
    known: Sequence[Form],
    detect: Callable[[Mapping[str, Any]], Form | None],
    asked: str,
) -> Form:
    """The one form of a source's files: as stated, or that of the first record of every file.

    Args:
        records: each file and the fields of its first record that can be read, None if none can.
        stated: what the run file says.
        fields: our names of fields to those of the records.
        known: the forms there are.
        detect: the form of a record under our names, None if it is of none.
        asked: the fields that are expected, and how to tell which is which.

    Raises:
        UserError: a form that is not known, files of unlike forms, or no readable record.
    """
    if stated is not None:
        if stated not in known:
            raise UserError(f"no form of conversation is called {stated!r}; known are {', '.join(known)}")
        return stated
    seen: dict[Form, tuple[Path, str]] = {}
    looked_at: list[Path] = []
    for path, record in records:
        looked_at.append(path)
        if record is None:
            continue
        renamed = {**record, **{ours: record[theirs] for ours, theirs in fields.items() if theirs in record}}
        name = detect(renamed)
        if name is None:
            found = formats.fields_of(record)
            raise UserError(f"{path}: no known form of conversation; its fields are {found}, expected {asked}")
        seen.setdefault(name, (path, formats.fields_of(record)))
    if len(seen) > 1:
        told = "; ".join(f"{path} holds {name} (fields {own})" for name, (path, own) in seen.items())
        raise UserError(f"files of unlike schemas in one source: {told}; make a source of each")
    if not seen:
        names = ", ".join(str(path) for path in looked_at[:3])
        raise UserError(f"{names}: not one readable record; give the run some conversations")
    return next(iter(seen))


def first_record(path: Path, kind: FileKind) -> dict[str, Any] | None:
    """The fields of a file's first record that can be read, None if none can."""
    for block in record_blocks(path, kind):
        for record in read_records(block):
            if not isinstance(record, Broken):
                return record.fields
    return None


def prepare(
    blocks: Iterable[RecordBlock], recipe: Recipe, *, workers: int = 1
) -> Iterator[tuple[RecordBlock, Prepared]]:
    """Read, render and tokenise blocks, yielding in their order.

    Args:
        blocks: what to read.
        recipe: how.
        workers: processes; 1 works in this one. Results do not depend on it.

    Raises:
        UserError: a bad sample, if they are to stop the run; names file and line.
    """
    return in_order(blocks, recipe, workers=workers)


def _prepare_block(block: RecordBlock, recipe: Recipe) -> Prepared:
    count = PreparationCount()
    dtype = smallest_dtype(2 * recipe.encoder.vocab_size)
    parts: list[NDArray[Any]] = []

    def bad(offset: int, sample: BadSample) -> None:
        told = f"{place(block, offset)}: {sample}"
        if recipe.bad_samples == "stop":
            raise UserError(f"{told}; or set data.bad_samples to skip, to leave such samples out and count them")
        count.left_out[sample.kind] += 1
        count.examples = [*count.examples, told][:_EXAMPLES]

    offsets: list[int] = []
    texts: list[RenderedText] = []
    under_way: tuple[list[int], Future[list[EncodedSample | BadSample]]] | None = None

    def take() -> None:
        if under_way is None:
            return
        for offset, sample in zip(under_way[0], under_way[1].result(), strict=True):
            if isinstance(sample, BadSample):
                bad(offset, sample)
            else:
                parts.append(_trimmed(sample).astype(dtype))
                count.trained_tokens += int(sample.trained[1:].sum())

    convert = formats.reader(recipe.format, recipe.fields)
    with ThreadPoolExecutor(1) as thread:
        for record in read_records(block):
            count.records += 1
            try:
                if isinstance(record, Broken):
                    raise BadSample(record.kind, record.message)
                rendered = recipe.encoder.render(convert(record.fields))
            except BadSample as sample:
                bad(record.offset, sample)
                continue
            offsets += [record.offset] * len(rendered)
            texts += rendered
            if len(texts) >= _BATCH:
                take()
                under_way = offsets, thread.submit(recipe.encoder.encode, texts)
                offsets, texts = [], []
        take()
        under_way = offsets, thread.submit(recipe.encoder.encode, texts)
        take()
    lengths = np.array([len(part) for part in parts], np.int64)
    count.samples, count.tokens = len(parts), int(lengths.sum())
    return Prepared(np.concatenate(parts) if parts else np.zeros(0, dtype), lengths, count)


def _trimmed(sample: EncodedSample) -> NDArray[np.int64]:
    """The sample's marked ids up to the last that is trained on: what follows it has no part in the loss."""
    stop = int(np.flatnonzero(sample.trained)[-1]) + 1
    return mark(sample.ids[:stop], sample.trained[:stop])
