"""Records written as files of one form: JSON lines with a folder of images, parquet with bytes, or WebDataset's tars.

Whatever their form was, records leave as OpenAI messages whose images stand in parts of their own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from loong_llm.conversations.messages import Conversation
from loong_vlm.data.forms import split_at_marks
from loong_vlm.data.media import Medium
from loong_vlm.data.records import IMAGE_ENDINGS, VIDEO_ENDINGS

ShardForm = Literal["webdataset", "jsonl", "parquet"]

_BEGINNINGS: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\x00", "tiff"),
    (b"MM\x00*", "tiff"),
    (b"\x1aE\xdf\xa3", "mkv"),
)


def messages_with_parts(conversation: Conversation, name_of: Callable[[int], Any], media: Sequence[Medium]) -> Any:
    """A conversation's messages with a part for each image, in OpenAI's form.

    Args:
        conversation: with marks where media are shown.
        name_of: what a part says of medium `number`.
        media: in the order of the marks.
    """
    written = []
    for message, trained in zip(conversation.messages, conversation.trained, strict=True):
        marks = split_at_marks(message["content"])
        own = dict(message)
        if marks:
            own["content"] = _parts(message["content"], marks, name_of, media)
        if not trained:
            own["weight"] = 0
        written.append(own)
    return written


def _parts(
    text: str, marks: list[tuple[int, int, int]], name_of: Callable[[int], Any], media: Sequence[Medium]
) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    position = 0
    for start, stop, number in [*marks, (len(text), len(text), -1)]:
        if text[position:start]:
            parts.append({"type": "text", "text": text[position:start]})
        if number >= 0:
            medium = media[number]
            rate = {} if medium.per_second is None else {"fps": medium.per_second}
            parts.append({"type": medium.kind, medium.kind: name_of(number), **rate})
        position = stop
    return parts


def ending_of(medium: Medium, data: bytes) -> str:
    """The ending of a medium's file name: by its first bytes, or else its own."""
    found = next((ending for beginning, ending in _BEGINNINGS if data.startswith(beginning)), None)
    if found is None and data[8:12] == b"WEBP":
        found = "webp"
    if found is None and data[4:8] == b"ftyp":
        found = "mp4"
    if found is None:
        own = "" if isinstance(medium.source, bytes) else medium.source.path.suffix.lower().removeprefix(".")
        known = IMAGE_ENDINGS if medium.kind == "image" else VIDEO_ENDINGS
        found = own if own in known else known[0]
    return found


class ShardWriter(Protocol):
    """Writes one shard."""

    def add(self, conversation: Conversation, media: Sequence[Medium]) -> None:
        """Append a record; its media are read."""
        ...

    def close(self) -> list[Path]:
        """Finish; what was written, the file whose presence tells that the shard is whole last."""
        ...


class TarWriter:
    """A tar in WebDataset's form, by the webdataset library.

    Args:
        path: to write.
        prefix: what keys of records begin with.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        from webdataset.writer import TarWriter as WebDatasetWriter

        self._path, self._prefix, self._count = path, prefix, 0
        # Neither owner nor time: the same records give the same bytes.
        self._tar = WebDatasetWriter(str(path), user="root", group="root", mtime=0.0, encoder=False)

    def add(self, conversation: Conversation, media: Sequence[Medium]) -> None:
        """Append a record: a `.json` part, and a part for each medium, which the JSON names."""
        parts: dict[str, Any] = {"__key__": f"{self._prefix}-{self._count:06}"}
        names = []
        for number, medium in enumerate(media):
            data = medium.read()
            name = f"{number:03}.{ending_of(medium, data)}"
            names.append(name)
            parts[name] = data
        record: dict[str, Any] = {"messages": messages_with_parts(conversation, lambda number: names[number], media)}
        if conversation.tools:
            record["tools"] = conversation.tools
        parts["json"] = json.dumps(record, ensure_ascii=False).encode("utf-8")
        self._tar.write(parts)
        self._count += 1

    def close(self) -> list[Path]:
        """Finish the tar."""
        self._tar.close()
        return [self._path]


class LinesWriter:
    """JSON lines, and beside them a folder of the records' media.

    Args:
        path: of the lines.
        prefix: what names of media begin with.
    """

    def __init__(self, path: Path, prefix: str) -> None:
        self._path, self._prefix, self._count = path, prefix, 0
        self._media = path.parent / "media"
        self._stream = path.open("w", encoding="utf-8")

    def add(self, conversation: Conversation, media: Sequence[Medium]) -> None:
        """Append a record; its media become files."""
        names = []
        for number, medium in enumerate(media):
            data = medium.read()
            self._media.mkdir(exist_ok=True)
            name = f"media/{self._prefix}-{self._count:06}-{number:03}.{ending_of(medium, data)}"
            (self._path.parent / name).write_bytes(data)
            names.append(name)
        record: dict[str, Any] = {"messages": messages_with_parts(conversation, lambda number: names[number], media)}
        if conversation.tools:
            record["tools"] = conversation.tools
        self._stream.write(json.dumps(record, ensure_ascii=False) + "\n")
        self._count += 1

    def close(self) -> list[Path]:
        """Finish the file."""
        self._stream.close()
        return [self._path]


class ParquetWriter:
    """Parquet with the bytes of images and videos in its rows, and messages with `<image>` where they are shown.

    Args:
        path: to write.
        prefix: not used: rows have no names.
    """

    _GROUP_BYTES = 64 << 20

    def __init__(self, path: Path, prefix: str) -> None:
        import pyarrow
        import pyarrow.parquet

        medium = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string()), ("fps", pyarrow.float64())])
        self._schema = pyarrow.schema(
            [
                ("messages", pyarrow.string()),
                ("images", pyarrow.list_(medium)),
                ("videos", pyarrow.list_(medium)),
                ("tools", pyarrow.string()),
            ]
        )
        self._path = path
        self._rows: list[Mapping[str, Any]] = []
        self._held = 0
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema)

    def add(self, conversation: Conversation, media: Sequence[Medium]) -> None:
        """Append a record."""
        shown: dict[str, list[dict[str, Any]]] = {"image": [], "video": []}
        messages = []
        for message, trained in zip(conversation.messages, conversation.trained, strict=True):
            text = message["content"]
            for _, _, number in split_at_marks(text):
                medium = media[number]
                data = medium.read()
                shown[medium.kind].append({"bytes": data, "path": None, "fps": medium.per_second})
                self._held += len(data)
            own = {**message, "content": re.sub("\ue000(\\d+)\ue001", lambda found: _tag(found, media), text)}
            messages.append(own if trained else {**own, "weight": 0})
        tools = json.dumps(conversation.tools, ensure_ascii=False) if conversation.tools else None
        row = {"messages": json.dumps(messages, ensure_ascii=False), "tools": tools}
        self._rows.append({**row, "images": shown["image"], "videos": shown["video"]})
        if self._held >= self._GROUP_BYTES:
            self._flush()

    def close(self) -> list[Path]:
        """Finish the file."""
        self._flush()
        self._writer.close()
        return [self._path]

    def _flush(self) -> None:
        import pyarrow

        if self._rows:
            self._writer.write_table(pyarrow.Table.from_pylist(self._rows, schema=self._schema))
            self._rows, self._held = [], 0


def _tag(found: re.Match[str], media: Sequence[Medium]) -> str:
    return f"<{media[int(found.group(1))].kind}>"


WRITERS: dict[ShardForm, tuple[str, Callable[[Path, str], ShardWriter]]] = {
    "webdataset": (".tar", TarWriter),
    "jsonl": (".jsonl", LinesWriter),
    "parquet": (".parquet", ParquetWriter),
}
"""The ending of each form's files, and what writes them."""
