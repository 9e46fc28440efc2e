"""Data with images from any form to another, in parallel; a conversion that was stopped goes on where it was.

The input is cut into pieces whose bounds depend on nothing but the input, and each piece becomes one shard, written
under a temporary name and renamed when it is whole. What is there need not be done again, so a second start does the
rest; a shard's name tells its piece, and a file beside them tells of what conversion they are the shards.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loong_core.data.in_order import in_order
from loong_core.errors import UserError
from loong_llm.conversations.messages import BadSample
from loong_llm.conversations.preparation import BadSamples
from loong_vlm.data import forms
from loong_vlm.data.forms import VisionForm
from loong_vlm.data.preparation import source_form
from loong_vlm.data.records import (
    BrokenRecord,
    VisionBlock,
    VisionRecord,
    place,
    read_vision_records,
    vision_blocks,
    vision_files,
)
from loong_vlm.data.shards import WRITERS, ShardForm

_MANIFEST = "_conversion.json"


@dataclass
class ConversionCount:
    """What became of the records.

    Attributes:
        records: how many were read.
        written: how many were written.
        media: images and videos written.
        left_out: records left out, by reason.
        examples: the first few of them.
        shards: shards that are there now.
        found: shards that were there before.
    """

    records: int = 0
    written: int = 0
    media: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    shards: int = 0
    found: int = 0

    def add(self, other: Mapping[str, Any]) -> None:
        """Add a shard's, as its file of counts has them."""
        self.records += other["records"]
        self.written += other["written"]
        self.media += other["media"]
        self.left_out.update(other["left_out"])
        self.examples = (self.examples + other["examples"])[:3]


@dataclass(frozen=True)
class _Piece:
    """Some records of a block, which become one shard."""

    number: int
    block: VisionBlock
    start: int
    stop: int


@dataclass(frozen=True)
class _Job:
    """What every piece is put through; sent to worker processes."""

    output: Path
    target: ShardForm
    form: VisionForm
    fields: Mapping[str, str]
    bad_samples: BadSamples

    def __call__(self, piece: _Piece) -> dict[str, Any]:
        """Write a piece's shard unless it is there; what became of its records."""
        ending, writer = WRITERS[self.target]
        name = f"shard-{piece.number:06}"
        counts = self.output / f".{name}.json"
        if counts.is_file():
            return {**json.loads(counts.read_text(encoding="utf-8")), "found": True}
        temporary = self.output / f".{name}.partial"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            shard = writer(temporary / f"{name}{ending}", name)
            told = self._write(piece, shard.add)
            files = shard.close()
            # Media first, then the records that name them, then the counts, by which the next start knows it is done.
            for medium in sorted((temporary / "media").glob("*")):
                (self.output / "media").mkdir(exist_ok=True)
                os.replace(medium, self.output / "media" / medium.name)
            for file in files:
                os.replace(file, self.output / file.name)
            (temporary / "counts").write_text(json.dumps(told), encoding="utf-8")
            os.replace(temporary / "counts", counts)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return {**told, "found": False}

    def _write(self, piece: _Piece, add: Callable[..., None]) -> dict[str, Any]:
        convert = forms.reader(self.form, self.fields)
        told: dict[str, Any] = {"records": 0, "written": 0, "media": 0, "left_out": {}, "examples": []}
        records = itertools.islice(read_vision_records(piece.block), piece.start, piece.stop)
        for record in records:
            told["records"] += 1
            try:
                told["media"] += self._convert(record, convert, add)
                told["written"] += 1
            except BadSample as bad:
                text = f"{place(piece.block, record.where)}: {bad}"
                if self.bad_samples == "stop":
                    raise UserError(f"{text}; or leave such records out with --bad-samples skip") from bad
                told["left_out"][bad.kind] = told["left_out"].get(bad.kind, 0) + 1
                told["examples"] = [*told["examples"], text][:3]
        return told

    @staticmethod
    def _convert(record: VisionRecord | BrokenRecord, convert: Any, add: Callable[..., None]) -> int:
        if isinstance(record, BrokenRecord):
            raise BadSample(record.kind, record.message)
        conversation, media = convert(record.fields, record.folder)
        try:
            for medium in media:
                medium.read()
        except UserError as error:
            raise BadSample("unreadable", str(error)) from error
        add(conversation, media)
        return len(media)


def convert_data(
    source: str,
    output: Path,
    target: ShardForm,
    *,
    form: VisionForm | None = None,
    fields: Mapping[str, str] | None = None,
    media_root: str | None = None,
    samples_a_shard: int = 1000,
    workers: int = 1,
    bad_samples: BadSamples = "stop",
    on_shard: Callable[[ConversionCount], None] | None = None,
) -> ConversionCount:
    """Write a source's records in another form.

    Args:
        source: a file, a folder, a glob, tars.
        output: folder for the shards; a conversion that was stopped there goes on.
        target: the form to write.
        form: of the source's records; None: detected.
        fields: our field name to the source's.
        media_root: folder that names of images are relative to; None: each file's own.
        samples_a_shard: records of a shard, at most.
        workers: processes; results do not depend on it.
        bad_samples: whether a record that is no conversation stops the conversion or is left out.
        on_shard: told after each shard.

    Raises:
        UserError: what is wrong with the source, or the folder holds something else.
    """
    files = vision_files(source)
    told_form = source_form(files, form, fields or {}, media_root)
    manifest = {
        "version": 1,
        "source": [[str(path.absolute()), path.stat().st_size, path.stat().st_mtime_ns] for path, _ in files],
        "form": told_form,
        "fields": dict(fields or {}),
        "media_root": media_root,
        "target": target,
        "samples_a_shard": samples_a_shard,
    }
    _claim(output, manifest)
    count = ConversionCount()
    blocks = (block for path, kind in files for block in vision_blocks(path, kind, media_root))
    job = _Job(output, target, told_form, fields or {}, bad_samples)
    for _, told in in_order(_pieces(blocks, samples_a_shard), job, workers=workers):
        count.add(told)
        count.shards += 1
        count.found += told["found"]
        if on_shard is not None:
            on_shard(count)
    return count


def _claim(output: Path, manifest: dict[str, Any]) -> None:
    """Take a folder for a conversion, or find that it is this conversion's already."""
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    path = output / _MANIFEST
    if path.is_file():
        with contextlib.suppress(ValueError, KeyError):
            if json.loads(path.read_text(encoding="utf-8"))["digest"] == digest:
                return
        raise UserError(
            f"{output} holds the shards of another conversion (other source, form or size of shards, or the source has "
            "changed since); name another folder, or remove it"
        )
    if output.exists() and any(output.iterdir()):
        raise UserError(f"{output} is not empty and holds no conversion; name another folder")
    output.mkdir(parents=True, exist_ok=True)
    temporary = output / f".{_MANIFEST}.partial"
    temporary.write_text(json.dumps({**manifest, "digest": digest}, indent=1), encoding="utf-8")
    os.replace(temporary, path)


def _pieces(blocks: Iterator[VisionBlock], samples: int) -> Iterator[_Piece]:
    numbers = itertools.count()
    for block in blocks:
        held = _length(block)
        for start in range(0, held, samples):
            yield _Piece(next(numbers), block, start, min(start + samples, held))


def _length(block: VisionBlock) -> int:
    return sum(1 for _ in read_vision_records(block))
