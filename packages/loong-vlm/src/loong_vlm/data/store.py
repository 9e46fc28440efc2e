"""Prepared samples on disk: marked token ids as loong-llm keeps them, and a table of what each sample shows.

Beside the three files of a token store lie `media.npy` (a row for each image: where it is, its grid, its place in the
sample), `media_bounds.npy` (the rows of each sample), `media_paths.json`, and `media.bin` with the images whose bytes
stood in the records themselves.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loong_core.data.token_store import TokenStore, open_store
from loong_core.errors import UserError
from loong_vlm.data.batch import Kind
from loong_vlm.data.encoding import Placed
from loong_vlm.data.media import Medium, Stretch
from loong_vlm.parts import Grid

KINDS: tuple[Kind, ...] = ("image", "video")

_ROW = np.dtype(
    [
        ("kind", "<u1"),
        ("path", "<i4"),
        ("offset", "<i8"),
        ("size", "<i8"),
        ("per_second", "<f8"),
        ("seconds", "<f8"),
        ("grid", "<i4", (3,)),
        ("first", "<i4"),
        ("stop", "<i4"),
    ]
)
_OWN_BYTES = -1
"""Number of the path that stands for `media.bin`."""


@dataclass(frozen=True)
class StoredMedium:
    """One image or video of a sample.

    Attributes:
        medium: where it is.
        grid: as it was when the sample was prepared.
        seconds: see `Measured`.
        first: see `Placed`.
        stop: see `Placed`.
    """

    medium: Medium
    grid: Grid
    seconds: float
    first: int
    stop: int

    @property
    def patches(self) -> int:
        """How many patches it has."""
        frames, rows, columns = self.grid
        return frames * rows * columns


@dataclass(frozen=True)
class MediaTable:
    """What each sample of a store shows.

    Attributes:
        rows: a row for each medium.
        bounds: `[samples + 1]` int64, the first row of each sample.
        paths: files that rows name by number.
        own_bytes: the file of bytes that came with the records.
        digest: identity of the content.
    """

    rows: NDArray[Any]
    bounds: NDArray[np.int64]
    paths: list[Path]
    own_bytes: Path
    digest: str

    def of(self, sample: int) -> list[StoredMedium]:
        """What a sample shows, in the order of its text."""
        return [self._medium(row) for row in self.rows[self.bounds[sample] : self.bounds[sample + 1]]]

    def patches(self) -> NDArray[np.int64]:
        """`[samples]`, patches of all images of each sample."""
        sizes = self.rows["grid"].astype(np.int64).prod(axis=1)
        running = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        return np.diff(running[self.bounds])

    def select(self, samples: NDArray[np.int64]) -> MediaTable:
        """The table of these samples, in this order."""
        counts = np.diff(self.bounds)[samples]
        bounds = self.bounds.tolist()
        chosen = [np.arange(bounds[sample], bounds[sample + 1]) for sample in samples.tolist()]
        rows = self.rows[np.concatenate(chosen)] if len(chosen) else self.rows[:0]
        digest = hashlib.sha256(self.digest.encode() + samples.tobytes()).hexdigest()
        return replace(self, rows=rows, bounds=np.concatenate([[0], np.cumsum(counts)]), digest=digest)

    def _medium(self, row: Any) -> StoredMedium:
        number = int(row["path"])
        path = self.own_bytes if number == _OWN_BYTES else self.paths[number]
        rate = float(row["per_second"])
        source = Stretch(path, int(row["offset"]), int(row["size"]))
        medium = Medium(KINDS[int(row["kind"])], source, rate if rate > 0 else None)
        frames, rows, columns = (int(value) for value in row["grid"])
        return StoredMedium(medium, (frames, rows, columns), float(row["seconds"]), int(row["first"]), int(row["stop"]))


@dataclass(frozen=True)
class VisionStore:
    """Samples and what they show.

    Attributes:
        tokens: marked ids of each sample.
        media: what each shows.
    """

    tokens: TokenStore
    media: MediaTable

    def __len__(self) -> int:
        """Number of samples."""
        return len(self.tokens)

    def select(self, samples: NDArray[np.int64], label: str) -> VisionStore:
        """Only these samples, in this order."""
        return VisionStore(self.tokens.select(samples, label), self.media.select(samples))


@dataclass(frozen=True)
class MediaBlock:
    """What the samples of one block show, as worker processes send it.

    Attributes:
        rows: a row for each medium, paths by number in `paths`, offsets of own bytes within `data`.
        counts: rows of each sample.
        paths: files.
        data: bytes of media that came with the records.
    """

    rows: NDArray[Any]
    counts: NDArray[np.int64]
    paths: list[str]
    data: bytes

    @staticmethod
    def of(samples: Sequence[Sequence[Placed]]) -> MediaBlock:
        """What these samples show."""
        numbers: dict[str, int] = {}
        data: list[bytes] = []
        held: dict[int, tuple[int, int]] = {}  # the same bytes shown by several samples are kept once
        length = 0
        rows = []
        for placed in (each for sample in samples for each in sample):
            medium = placed.measured.medium
            if isinstance(medium.source, bytes):
                if id(medium.source) not in held:
                    held[id(medium.source)] = length, len(medium.source)
                    data.append(medium.source)
                    length += len(medium.source)
                number, (offset, size) = _OWN_BYTES, held[id(medium.source)]
            else:
                number = numbers.setdefault(str(medium.source.path.absolute()), len(numbers))
                offset, size = medium.source.offset, medium.source.size
            kind, rate = KINDS.index(medium.kind), medium.per_second or 0.0
            measured = placed.measured
            row = (kind, number, offset, size, rate, measured.seconds, measured.grid, placed.first, placed.stop)
            rows.append(row)
        counts = np.array([len(sample) for sample in samples], np.int64)
        return MediaBlock(np.array(rows, _ROW), counts, list(numbers), b"".join(data))


class MediaWriter:
    """Writes the media files of a store, block after block."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stream = (folder / "media.bin").open("wb")
        self._rows: list[NDArray[Any]] = []
        self._counts: list[NDArray[np.int64]] = []
        self._paths: dict[str, int] = {}
        self._hash = hashlib.sha256()

    def add(self, block: MediaBlock) -> None:
        """Append a block's."""
        rows = block.rows.copy()
        own = rows["path"] == _OWN_BYTES
        rows["offset"][own] += self._stream.tell()
        numbers = np.array([self._paths.setdefault(path, len(self._paths)) for path in block.paths], np.int32)
        if len(numbers):
            rows["path"][~own] = numbers[rows["path"][~own]]
        self._stream.write(block.data)
        self._hash.update(block.data)
        self._rows.append(rows)
        self._counts.append(block.counts)

    def finish(self) -> str:
        """Write what remains; returns the digest of all."""
        self._stream.close()
        rows = np.concatenate(self._rows) if self._rows else np.zeros(0, _ROW)
        counts = np.concatenate(self._counts) if self._counts else np.zeros(0, np.int64)
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        np.save(self._folder / "media.npy", rows, allow_pickle=False)
        np.save(self._folder / "media_bounds.npy", bounds, allow_pickle=False)
        (self._folder / "media_paths.json").write_text(json.dumps(list(self._paths)), encoding="utf-8")
        for part in (rows.tobytes(), bounds.tobytes(), json.dumps(list(self._paths)).encode()):
            self._hash.update(part)
        return self._hash.hexdigest()


def open_vision_store(folder: Path, name: str, *, verify: bool, digest: str | None = None) -> VisionStore:
    """Open a prepared folder.

    Args:
        folder: what was prepared.
        name: what to call it in messages.
        verify: read all ids once and compare with their digest.
        digest: the digest of the ids that they must have, if it is known.

    Raises:
        UserError: the folder is incomplete or damaged.
    """
    tokens = open_store(folder, name, verify=verify, digest=digest)
    try:
        rows = np.load(folder / "media.npy", allow_pickle=False)
        bounds = np.load(folder / "media_bounds.npy", allow_pickle=False)
        paths = [Path(path) for path in json.loads((folder / "media_paths.json").read_text(encoding="utf-8"))]
        told = json.loads((folder / "store.json").read_text(encoding="utf-8"))["made_from"]["media_digest"]
    except (OSError, ValueError, KeyError, EOFError) as error:
        raise UserError(f"{folder} is no readable store of images ({error}); delete it, to be built again") from error
    if rows.dtype != _ROW or len(bounds) != len(tokens) + 1 or int(bounds[-1]) != len(rows):
        raise UserError(
            f"{folder}: {len(rows)} images in {len(bounds) - 1} samples do not go with {len(tokens)} samples of text; "
            "delete it, to be built again"
        )
    return VisionStore(tokens, MediaTable(rows, bounds, paths, folder / "media.bin", told))
