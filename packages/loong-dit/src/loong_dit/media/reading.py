"""Pictures and videos as tensors, and the file that lists them with their captions."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loong_core.errors import ConfigError, Fault, UserError

VIDEO_SUFFIXES = (".mp4", ".mov", ".mkv", ".webm", ".avi", ".gif", ".m4v")


class MediaError(UserError):
    """A file that is there cannot be read as a picture or a video."""


@dataclass(frozen=True)
class Listed:
    """One sample of a list.

    Attributes:
        path: the picture or video.
        caption: its text.
        references: further pictures (`edit_image`).
    """

    path: Path
    caption: str
    references: tuple[Path, ...] = ()


def read_list(file: Path, base: Path | None = None) -> list[Listed]:
    """Samples from a CSV, JSON or JSON Lines file with columns `video` or `image`, `prompt`, and perhaps `edit_image`.

    Args:
        file: the list.
        base: folder that its paths are relative to; the list's own by default.

    Raises:
        ConfigError: with every row that cannot be used: a column missing, or a file that is not there.
    """
    base = file.parent if base is None else base
    found, faults = [], []
    for number, row in enumerate(_rows(file), 1):
        where = f"{file}, sample {number}"
        media = row.get("video") or row.get("image")
        caption = row.get("prompt", row.get("caption"))
        if not isinstance(media, str) or not media:
            faults.append(Fault(where, "has neither video nor image", "give the file's path in one of these columns"))
            continue
        if not isinstance(caption, str):
            faults.append(Fault(where, "has no prompt", "give its caption, which may be empty"))
            continue
        others = row.get("edit_image") or []
        paths = [base / media, *(base / each for each in ([others] if isinstance(others, str) else others))]
        missing = [Fault(where, f"{path} is not there") for path in paths if not path.is_file()]
        faults += missing
        if not missing:
            found.append(Listed(paths[0], caption, tuple(paths[1:])))
    if faults:
        shown = faults[:40]
        more = [Fault(str(file), f"and {len(faults) - 40} more")] if len(faults) > 40 else []
        raise ConfigError([*shown, *more])
    if not found:
        raise UserError(f"{file} lists no sample")
    return found


def read_media(path: Path, *, frames: int | None = None) -> Tensor:
    """A picture, or the first `frames` frames of a video, `[3, frames, rows, columns]` in -1 to 1.

    Raises:
        MediaError: the file is damaged, or of a kind that is not read.
    """
    try:
        pixels = _video(path, frames) if path.suffix.lower() in VIDEO_SUFFIXES else _picture(path)
    except UserError:
        raise
    except Exception as error:  # decoders fail in many ways
        raise MediaError(f"{path} cannot be read: {type(error).__name__}: {error}") from error
    return torch.from_numpy(pixels).permute(3, 0, 1, 2).float() / 127.5 - 1


def media_size(path: Path) -> tuple[int, int, int]:
    """Frames, rows and columns, from the file's header where it tells.

    Raises:
        MediaError: the file is damaged, or of a kind that is not read.
    """
    try:
        if path.suffix.lower() in VIDEO_SUFFIXES:
            return _video_size(path)
        from PIL import Image

        with Image.open(path) as picture:
            return 1, picture.height, picture.width
    except UserError:
        raise
    except Exception as error:  # decoders fail in many ways
        raise MediaError(f"{path} cannot be read: {type(error).__name__}: {error}") from error


def _video_size(path: Path) -> tuple[int, int, int]:
    with _av().open(str(path)) as container:
        stream = container.streams.video[0]
        frames = stream.frames or sum(1 for _ in container.decode(video=0))
        if not frames:
            raise MediaError(f"{path} has no frame")
        return frames, stream.height, stream.width


def _picture(path: Path) -> Any:
    from PIL import Image

    with Image.open(path) as picture:
        return np.array(picture.convert("RGB"))[None]


def _video(path: Path, frames: int | None) -> Any:
    read = []
    with _av().open(str(path)) as container:
        for frame in container.decode(video=0):
            read.append(frame.to_ndarray(format="rgb24"))
            if frames is not None and len(read) == frames:
                break
    if not read:
        raise MediaError(f"{path} has no frame")
    return np.stack(read)


def _av() -> Any:
    try:
        import av
    except ImportError as error:
        raise UserError("av is not installed; pip install 'loong-dit[video]' to read videos") from error
    return av


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    try:
        if file.suffix == ".csv":
            return list(csv.DictReader(text.splitlines()))
        if file.suffix == ".jsonl":
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        elif file.suffix == ".json":
            rows = json.loads(text)
        else:
            raise UserError(f"{file} is of a kind that is not read; .csv, .json and .jsonl are")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not {file.suffix[1:].upper()}: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{file} is no list of objects")
    return rows
