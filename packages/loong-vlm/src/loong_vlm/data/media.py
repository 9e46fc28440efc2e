"""Where an image or a video is: a file, a stretch of a file (a member of a tar, bytes kept in a cache), or bytes."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from loong_core.errors import UserError
from loong_llm.conversations.messages import BadSample
from loong_vlm.data.batch import Kind


@dataclass(frozen=True)
class Stretch:
    """Bytes of a file.

    Attributes:
        path: the file.
        offset: of the first byte.
        size: how many; -1: all to the end.
    """

    path: Path
    offset: int = 0
    size: int = -1

    def read(self) -> bytes:
        """The bytes.

        Raises:
            UserError: the file is missing, unreadable or too short.
        """
        try:
            with self.path.open("rb") as stream:
                stream.seek(self.offset)
                data = stream.read(self.size)
        except FileNotFoundError as error:
            raise UserError(f"{self.path} is missing; copy it there, or correct the record that names it") from error
        except OSError as error:
            raise UserError(f"{self.path} cannot be read: {error.strerror or error}") from error
        if 0 <= self.size != len(data):
            raise UserError(
                f"{self.path} ends at byte {self.offset + len(data):,}, {self.offset + self.size:,} were there when "
                "it was prepared; copy it again"
            )
        return data

    def __str__(self) -> str:
        """For messages."""
        return (
            str(self.path) if self.size < 0 else f"{self.path} (bytes {self.offset:,} to {self.offset + self.size:,})"
        )


@dataclass(frozen=True)
class Medium:
    """An image or a video of a record.

    Attributes:
        kind: which of the two.
        source: where it is, or its bytes.
        per_second: of a video, frames to take a second, where the record says so.
    """

    kind: Kind
    source: Stretch | bytes
    per_second: float | None = None

    def read(self) -> bytes:
        """Its bytes.

        Raises:
            UserError: see `Stretch.read`.
        """
        return self.source if isinstance(self.source, bytes) else self.source.read()

    def __str__(self) -> str:
        """For messages."""
        place = f"of {len(self.source):,} bytes in the record" if isinstance(self.source, bytes) else str(self.source)
        return f"{self.kind} {place}"


class MediaFolder:
    """Resolves what records say of images against a folder; members of a tar go before it.

    Args:
        root: folder that relative paths are relative to.
        members: name to stretch, for records in a tar.
    """

    def __init__(self, root: Path, members: dict[str, Stretch | bytes] | None = None) -> None:
        self._root = root
        self.members = members or {}

    def find(self, kind: Kind, value: Any, per_second: float | None = None) -> Medium:
        """The medium that a record's value stands for: a path, `file:` or `data:` address, bytes, or `datasets`' form.

        Raises:
            BadSample: nothing of that kind is known, or the value lies on the network.
        """
        if isinstance(value, dict):
            if isinstance(value.get("bytes"), bytes):
                return Medium(kind, value["bytes"], per_second)
            return self.find(kind, value.get("url", value.get("path")), per_second)
        if isinstance(value, bytes):
            return Medium(kind, value, per_second)
        if not isinstance(value, str) or not value.strip():
            raise BadSample(
                "unreadable", f"an {kind} is {_shown(value)}, expected a path or bytes; leave the sample out"
            )
        if value in self.members:
            return Medium(kind, self.members[value], per_second)
        if value.startswith("data:"):
            return Medium(kind, _decoded(kind, value), per_second)
        if value.startswith(("http://", "https://", "s3://", "gs://", "hf://")):
            raise BadSample(
                "unreadable",
                f"the {kind} {value[:80]} lies on the network; download it and name the file instead",
            )
        path = unquote(urlsplit(value).path) if value.startswith("file://") else value
        return Medium(kind, Stretch(self._root / Path(path).expanduser()), per_second)


def _decoded(kind: Kind, address: str) -> bytes:
    head, _, payload = address.partition(",")
    if not head.endswith(";base64"):
        raise BadSample("unreadable", f"an {kind} address begins with {head[:40]!r}, expected 'data:...;base64,'")
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadSample("unreadable", f"the base64 bytes of an {kind} cannot be decoded: {error}") from error


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
