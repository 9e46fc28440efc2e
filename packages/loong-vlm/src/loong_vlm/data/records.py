"""Records with images, wherever they are: what loong-llm reads of files and tables, and WebDataset's tars.

A tar is a shard in WebDataset's form: files that share a name up to its first dot make a record, what follows the dot
says which part of it a file is. A `.json` part is the record; its images are named in it, or are the other parts in the
order of their names; a `.txt` part is the caption of them.
"""

from __future__ import annotations

import glob
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from webdataset.tariterators import base_plus_ext

from loong_llm.conversations import records as text_records
from loong_llm.conversations.records import Broken, FileKind, RecordBlock
from loong_vlm.data.media import MediaFolder, Stretch

VisionKind = FileKind | Literal["tar"]

IMAGE_ENDINGS = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff", "ppm")
VIDEO_ENDINGS = ("mp4", "mkv", "webm", "avi", "mov", "m4v", "mpg", "mpeg")


@dataclass(frozen=True)
class VisionBlock:
    """Part of a file of records: a block of loong-llm's, or a whole tar.

    Attributes:
        path: the file.
        kind: its format.
        block: what loong-llm reads; None for a tar.
        root: folder that relative names of images are relative to.
    """

    path: Path
    kind: VisionKind
    block: RecordBlock | None
    root: Path


@dataclass(frozen=True)
class VisionRecord:
    """A record, and where its images are found.

    Attributes:
        where: its offset as loong-llm counts it, or its key in a tar; `place` tells it to people.
        fields: its value.
        folder: what its images' names refer to.
    """

    where: int | str
    fields: dict[str, Any]
    folder: MediaFolder


@dataclass(frozen=True)
class BrokenRecord:
    """A record that cannot be read."""

    where: int | str
    kind: str
    message: str


def vision_files(path: str) -> list[tuple[Path, VisionKind]]:
    """The files that a source's path stands for.

    Raises:
        UserError: nothing is there, or a file of a format that holds no conversations.
    """
    here = Path(path).expanduser()
    if here.is_dir():
        found = (entry for entry in here.rglob("*") if is_tar(entry))
        tars = sorted(entry for entry in found if not _is_hidden(entry.relative_to(here)))
    elif here.is_file():
        tars = [here] if is_tar(here) else []
    else:
        tars = sorted(Path(match) for match in glob.glob(str(here), recursive=True) if is_tar(Path(match)))
    if tars:
        return [(tar, "tar") for tar in tars]
    return [(file, kind) for file, kind in text_records.record_files(path)]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith((".", "_")) for part in path.parts)


def is_tar(path: Path) -> bool:
    """Whether a file's name is a tar's."""
    return path.name.lower().endswith((".tar", ".tar.gz", ".tgz"))


def vision_blocks(path: Path, kind: VisionKind, media_root: str | None) -> Iterator[VisionBlock]:
    """The blocks of a file in reading order; images are relative to `media_root`, or to the file's folder."""
    root = Path(media_root).expanduser() if media_root is not None else path.parent
    if kind == "tar":
        yield VisionBlock(path, kind, None, root)
        return
    for block in text_records.record_blocks(path, kind):
        yield VisionBlock(path, kind, block, root)


def read_vision_records(block: VisionBlock) -> Iterator[VisionRecord | BrokenRecord]:
    """The records of a block, in order.

    Raises:
        UserError: a damaged table, or a JSON file whose records cannot be told apart.
    """
    if block.block is None:
        yield from _read_tar(block)
        return
    folder = MediaFolder(block.root)
    for record in text_records.read_records(block.block):
        if isinstance(record, Broken):
            yield BrokenRecord(record.offset, record.kind, record.message)
        else:
            yield VisionRecord(record.offset, record.fields, folder)


def place(block: VisionBlock, where: int | str) -> str:
    """Where a record of a block stands, for people."""
    if block.block is not None and isinstance(where, int):
        return text_records.place(block.block, where)
    return f"{block.path}, {where}"


def _read_tar(block: VisionBlock) -> Iterator[VisionRecord | BrokenRecord]:
    compressed = not block.path.name.lower().endswith(".tar")
    key: str | None = None
    parts: dict[str, Stretch | bytes] = {}
    number = 0
    try:
        with tarfile.open(block.path, "r:*") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                number += 1
                prefix, ending = base_plus_ext(member.name)
                if prefix is None or ending is None or Path(prefix).name.startswith("."):
                    continue
                if prefix != key:
                    if parts:
                        yield _assembled(block, str(key), parts)
                    key, parts = prefix, {}
                if compressed or ending in ("json", "txt"):
                    stream = tar.extractfile(member)
                    assert stream is not None
                    parts[ending] = stream.read()
                else:
                    parts[ending] = _within(block.path, member)
        if parts:
            yield _assembled(block, str(key), parts)
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        yield BrokenRecord(
            f"after member {number}",
            "tar",
            f"the tar is broken there ({error}), and what follows cannot be read; copy it again",
        )


def _within(path: Path, member: tarfile.TarInfo) -> Stretch:
    if member.offset_data + member.size > path.stat().st_size:
        raise tarfile.ReadError(f"{member.name} ends after the file")
    return Stretch(path, member.offset_data, member.size)


def _assembled(block: VisionBlock, key: str, parts: dict[str, Stretch | bytes]) -> VisionRecord | BrokenRecord:
    where = f"record {key}"
    media = {ending: part for ending, part in sorted(parts.items()) if ending not in ("json", "txt")}
    fields: dict[str, Any] = {}
    text = parts.get("json", parts.get("txt"))
    if not isinstance(text, bytes):
        endings = ", ".join(sorted(parts))
        return BrokenRecord(where, "fields", f"it has no .json and no .txt part ({endings}); name the parts so")
    try:
        fields = json.loads(text.decode("utf-8")) if "json" in parts else {"caption": text.decode("utf-8")}
    except ValueError as error:
        return BrokenRecord(where, "json", f"its .{'json' if 'json' in parts else 'txt'} part: {error}")
    if not isinstance(fields, dict):
        return BrokenRecord(where, "json", f"expected an object, found {type(fields).__name__}")
    for several, one, endings in (("images", "image", IMAGE_ENDINGS), ("videos", "video", VIDEO_ENDINGS)):
        own = [name for name in media if name.rsplit(".", 1)[-1].lower() in endings]
        if own and not _shows_itself(fields) and several not in fields and one not in fields:
            fields[several] = own
    stem = Path(key).name
    named = {name: part for ending, part in media.items() for name in (ending, f"{stem}.{ending}", f"{key}.{ending}")}
    return VisionRecord(where, fields, MediaFolder(block.root, named))


def _shows_itself(fields: dict[str, Any]) -> bool:
    """Whether messages name their images in parts of their own."""
    messages = fields.get("messages")
    if not isinstance(messages, list):
        return False
    contents = [message.get("content") for message in messages if isinstance(message, dict)]
    parts = [part for content in contents if isinstance(content, list) for part in content if isinstance(part, dict)]
    kinds = ("image", "image_url", "video", "video_url")
    return any(part.get("type") in kinds and part.get(part["type"]) is not None for part in parts)
