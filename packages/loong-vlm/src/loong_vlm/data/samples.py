"""Samples with images, packed by their tokens and by their patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from loong_core.data.packed_samples import WINDOW, PackedSamples, Stretch
from loong_core.data.sequences import Sample
from loong_core.errors import UserError
from loong_vlm.balance.cost import features
from loong_vlm.balance.plan import Item
from loong_vlm.data.store import StoredMedium, VisionStore

LongVisionSamples = Literal["truncate", "drop", "stop"]
"""What becomes of a sample longer than a sequence: its beginning is kept, up to the first image that does not fit
whole; it is left out; or the run stops."""


@dataclass(frozen=True)
class Shown:
    """A medium in a row.

    Attributes:
        medium: the image or video.
        start: first place of the sample that shows it.
        stop: the place after that sample's last.
        sample: which sample of which source it is, for people.
    """

    medium: StoredMedium
    start: int
    stop: int
    sample: str


@dataclass(frozen=True)
class VisionRow(Sample):
    """A sequence, and what its samples show, in the order of the text."""

    shown: tuple[Shown, ...] = ()


class VisionSamples(PackedSamples):
    """The sequences of one store, epoch after epoch.

    Args:
        store: samples and what they show.
        sequence_length: places of a sequence.
        patch_budget: patches of images that a sequence holds; None: any number.
        long_samples: what becomes of samples that do not fit.
        packing: whether samples share sequences.
        multiple: each sample's places are filled up to a multiple of this.
        seed: decides the orders, with `source`.
        source: number of this store in its blend.
        window: samples that packing looks ahead.

    Raises:
        UserError: nothing is left to train on, or a sample does not fit and `long_samples` is `stop`.
    """

    def __init__(
        self,
        store: VisionStore,
        sequence_length: int,
        *,
        patch_budget: int | None = None,
        long_samples: LongVisionSamples = "truncate",
        packing: bool = True,
        multiple: int = 1,
        seed: int = 0,
        source: int = 0,
        window: int = WINDOW,
    ) -> None:
        self.vision = store
        self.second_capacity = patch_budget
        self._patches = store.media.patches()
        super().__init__(
            store.tokens,
            sequence_length,
            long_samples=long_samples,
            packing=packing,
            multiple=multiple,
            seed=seed,
            source=source,
            window=window,
        )

    @property
    def key(self) -> tuple[Any, ...]:
        """What, beside the store of tokens and the sequence length, decides the samples."""
        return (*super().key, self.second_capacity, self.vision.media.digest)

    def media(self, stretch: Stretch) -> list[StoredMedium]:
        """What a stretch shows: the media that lie wholly in it."""
        index, start, stop = stretch
        return [medium for medium in self.vision.media.of(index) if start <= medium.first and medium.stop <= stop]

    def second_size(self, stretch: Stretch) -> int:
        """Patches that a stretch shows."""
        index, start, stop = stretch
        if start == 0 and stop >= int(self.store.lengths[index]) - 1:
            return int(self._patches[index])
        return sum(medium.patches for medium in self.media(stretch))

    def item(self, stretch: Stretch) -> Item:
        """What balancing has to know of a stretch."""
        grids = [medium.grid for medium in self.media(stretch)]
        patches = sum(frames * rows * columns for frames, rows, columns in grids)
        return Item(self.places(stretch), patches, features(self.places(stretch), grids))

    def excess(self, index: int, length: int) -> str:
        """By what a sample does not fit, and what to do about it."""
        if length <= self.sequence_length:
            return (
                f"{self.store.name}: sample {index} shows {int(self._patches[index]):,} patches of images, "
                f"data.patch_budget is {self.second_capacity:,}; raise it, lower data.max_pixels, or set "
                "data.long_samples to truncate or drop"
            )
        return (
            f"{self.store.name}: sample {index} has {length + 1:,} tokens, those of its images among them, "
            f"data.sequence_length is {self.sequence_length:,}; raise it, lower data.max_pixels, or set "
            "data.long_samples to truncate or drop"
        )

    def cuts(self, index: int, length: int) -> list[tuple[int, int]]:
        """Where a sample that does not fit is cut: before the first image that is not wholly within both budgets."""
        if self.policy != "truncate":
            return []
        limit, patches = min(length, self.sequence_length), 0
        for medium in self.vision.media.of(index):
            patches += medium.patches
            over = self.second_capacity is not None and patches > self.second_capacity
            if medium.stop > limit or over:
                limit = min(limit, medium.first)
                break
        return [(0, limit)] if limit > 0 else []


def check_budget(patch_budget: int | None, sequence_length: int) -> None:
    """Refuse budgets that hold nothing.

    Raises:
        UserError: see above.
    """
    if patch_budget is not None and patch_budget < 1:
        raise UserError(f"data.patch_budget {patch_budget} holds no image; raise it, or leave it out")
    if sequence_length < 2:
        raise UserError(f"data.sequence_length {sequence_length} holds no sample; raise it")
