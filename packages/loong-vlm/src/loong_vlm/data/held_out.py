"""Held-out samples with images, as a fixed list of sequences."""

from __future__ import annotations

from collections.abc import Sequence

from loong_core.data.batch import IGNORED_LABEL
from loong_core.data.held_out import HeldOutRows
from loong_core.data.sequences import Sample
from loong_vlm.data.batch import VisionBatch
from loong_vlm.data.collation import Collator
from loong_vlm.data.samples import VisionRow, VisionSamples
from loong_vlm.data.store import VisionStore
from loong_vlm.data.stream import vision_row


class VisionHeldOut(HeldOutRows):
    """Held-out sequences, whose images are loaded when they are asked for.

    Args:
        stores: the samples.
        sequence_length: places of a sequence; of longer samples the beginning counts.
        collator: makes microbatches.
        patch_budget: patches that a sequence holds; None: any number.
        multiple: each sample's places are filled up to a multiple of this.

    Raises:
        UserError: nothing is left to judge by.
    """

    def __init__(
        self,
        stores: Sequence[VisionStore],
        sequence_length: int,
        collator: Collator,
        *,
        patch_budget: int | None = None,
        multiple: int = 1,
    ) -> None:
        self.stores = [store.tokens for store in stores]
        self.sequence_length = sequence_length
        self._collator = collator
        parts = [
            VisionSamples(store, sequence_length, patch_budget=patch_budget, multiple=multiple, source=number)
            for number, store in enumerate(stores)
        ]
        self._rows = [(part, number) for part in parts for number in range(part.per_epoch)]
        self.predicted_tokens = sum(
            int((self.row(number).labels != IGNORED_LABEL).sum()) for number in range(len(self))
        )

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._rows)

    def row(self, index: int) -> VisionRow:
        """One sequence."""
        part, number = self._rows[index]
        return vision_row([(part, stretch) for stretch in part.stretches(number)], part)

    def collate(self, rows: list[Sample]) -> VisionBatch:  # type: ignore[override] - batches of another kind
        """Rows as a microbatch."""
        return self._collator(rows)
