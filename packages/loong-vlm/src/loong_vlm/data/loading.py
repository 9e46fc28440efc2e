"""Images and videos from their files to patches, in threads: decoding and resizing let go of Python's lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal

import torch
from torch import Tensor

from loong_core.errors import UserError
from loong_vlm.data.encoding import video_source
from loong_vlm.data.media import Medium
from loong_vlm.data.pixels.image_files import decode_image
from loong_vlm.data.pixels.processor import PixelProcessor
from loong_vlm.data.pixels.video_files import decode_frames, video_facts
from loong_vlm.data.store import StoredMedium

BrokenMedia = Literal["stop", "blank"]
"""What an image does that was whole when it was prepared, or whose header was, and cannot be decoded: it stops the run,
or it is shown blank and nothing of its sample is trained on."""


def load_medium(medium: Medium, processor: PixelProcessor) -> Tensor:
    """`[patches, patch_dim]` float32, the pixels of one image or video as its tower reads them.

    Raises:
        UserError: it is missing or cannot be decoded; names the file.
    """
    try:
        if medium.kind == "image":
            patches = processor.image_patches(decode_image(medium.read()))
        else:
            source = video_source(medium)
            indices = processor.frames.indices(video_facts(source), medium.per_second)
            patches = processor.video_patches(decode_frames(source, indices))
    except UserError as error:
        told = str(error)
        raise UserError(told if str(medium.source) in told else f"{medium}: {told}") from error
    return processor.normalisation(patches, processor.temporal)


class MediaLoader:
    """Loads what rows show, several at a time.

    Args:
        processor: turns pixels into patches.
        threads: that decode at the same time.
        broken: what an image does that cannot be decoded.
        on_blank: told, by the thread that decodes, of each medium that is shown blank: which and why, and how many
            there were by then on this rank.

    Attributes:
        blanked: how many media were shown blank.
    """

    def __init__(
        self,
        processor: PixelProcessor,
        *,
        threads: int = 1,
        broken: BrokenMedia = "stop",
        on_blank: Callable[[str, int], None] | None = None,
    ) -> None:
        self.processor = processor
        self._broken: BrokenMedia = broken
        self._on_blank = on_blank
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="media")
        self._lock = threading.Lock()
        self.blanked = 0

    def submit(self, media: Sequence[StoredMedium]) -> list[Future[Tensor | None]]:
        """Begin to load these; each result is `[patches, patch_dim]` float32, or None for one to be shown blank."""
        return [self._pool.submit(self._load, medium) for medium in media]

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def blank(self, medium: StoredMedium) -> Tensor:
        """Patches of the value that normalisation gives to the mean of all pixels."""
        return torch.zeros(medium.patches, self.processor.patch_dim)

    def _load(self, stored: StoredMedium) -> Tensor | None:
        try:
            patches = load_medium(stored.medium, self.processor)
            if len(patches) != stored.patches:
                raise UserError(
                    f"{stored.medium} has {len(patches):,} patches, {stored.patches:,} when it was prepared; it was "
                    "changed since: delete the run's cache folder, and the next start prepares it again"
                )
        except UserError as error:
            if self._broken == "stop":
                raise UserError(
                    f"{error}; or set data.bad_samples to skip, to go on without the samples that show such images"
                ) from error
            with self._lock:
                self.blanked += 1
                if self._on_blank is not None:
                    self._on_blank(str(error), self.blanked)
            return None
        return patches
