"""Samples as files people look at: PNG grids, MP4 videos."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loong_core.errors import UserError

_GAP = 2


def to_bytes(video: Tensor) -> Tensor:
    """`[channels, frames, rows, columns]` in -1 to 1 to `[frames, rows, columns, 3]` uint8."""
    pixels = ((video.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    return pixels.expand(3, -1, -1, -1).permute(1, 2, 3, 0).contiguous()


def write_grid(file: Path, videos: Sequence[Tensor], captions: Sequence[str], *, scale: int = 1) -> None:
    """A row for each video, its frames side by side, with the caption under it.

    Args:
        file: a PNG.
        videos: `[channels, frames, rows, columns]` in -1 to 1 each.
        captions: one each.
        scale: pixels of a side of each pixel.
    """
    from PIL import Image, ImageDraw

    strips = [_strip(to_bytes(video), scale) for video in videos]
    text = 14
    columns = max(1, min(len(strips), 1200 // (max(strip.shape[1] for strip in strips) + 4 * _GAP)))
    cell_height = max(strip.shape[0] for strip in strips) + text + 2 * _GAP
    cell_width = max(strip.shape[1] for strip in strips) + 4 * _GAP
    rows = -(-len(strips) // columns)
    sheet: Any = Image.new("RGB", (columns * cell_width, rows * cell_height), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (strip, caption) in enumerate(zip(strips, captions, strict=True)):
        left, top = number % columns * cell_width + 2 * _GAP, number // columns * cell_height + _GAP
        sheet.paste(Image.fromarray(strip), (left, top))
        pen.text((left, top + strip.shape[0] + 1), _fitting(pen, caption, cell_width - 4 * _GAP), fill="black")
    file.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(file, format="PNG")


def write_video(file: Path, video: Tensor, *, fps: int) -> None:
    """An MP4 of `[channels, frames, rows, columns]` in -1 to 1.

    Raises:
        UserError: PyAV is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise UserError("av is not installed; pip install 'loong-dit[video]' to write videos") from error
    frames = to_bytes(video).numpy()
    height, width = (size + size % 2 for size in frames.shape[1:3])  # the format takes even sizes
    frames = np.pad(frames, ((0, 0), (0, height - frames.shape[1]), (0, width - frames.shape[2]), (0, 0)), mode="edge")
    file.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(file), "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.bit_rate = max(400_000, 4 * width * height * fps // 10)
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def _strip(frames: Tensor, scale: int) -> Any:
    """Frames side by side with a gap, `[rows, columns, 3]` uint8."""
    large = frames.repeat_interleave(scale, dim=1).repeat_interleave(scale, dim=2).numpy()
    gap = np.full((large.shape[1], _GAP, 3), 255, np.uint8)
    parts = [part for frame in large for part in (frame, gap)][:-1]
    return np.concatenate(parts, axis=1)


def _fitting(pen: Any, caption: str, width: int) -> str:
    """As much of a caption as fits."""
    if pen.textlength(caption) <= width:
        return caption
    while caption and pen.textlength(caption + "...") > width:
        caption = caption[:-1]
    return caption + "..."
