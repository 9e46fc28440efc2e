"""Training data with images as the model sees them, for people: text as loong-llm shows it, images as their sizes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from rich.text import Text

from loong_core.data.batch import IGNORED_LABEL
from loong_llm.conversations.inspection import CONTEXT, TRAINED
from loong_vlm.data.batch import VisionBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_IMAGE = "bold magenta"


def inspect_vision_batches(batches: Iterable[VisionBatch], tokenizer: PreTrainedTokenizerBase) -> Iterator[Text]:
    """A text for each sequence of each microbatch: a headline, then its text with images in their places.

    Args:
        batches: as a stream gives them.
        tokenizer: to write the tokens with.
    """
    legend = Text("trained on", style=TRAINED[0]).append(", read only", style=CONTEXT[0])
    yield legend.append(", images", style=_IMAGE)
    for number, batch in enumerate(batches):
        bounds = batch.text.cu_seqlens.tolist()
        trained = int((batch.labels != IGNORED_LABEL).sum())
        yield Text(
            f"microbatch {number}: {bounds[-1]:,} tokens in {len(bounds) - 1} sequences, {trained:,} trained on "
            f"({100 * trained / max(bounds[-1], 1):.1f} %), {batch.pictures.count} images and videos of "
            f"{batch.pictures.patches.shape[0]:,} patches",
            style="bold",
        )
        shown = _Shown(batch)
        for start, stop in pairwise(bounds):
            yield _sequence(batch, start, stop, shown, tokenizer)


class _Shown:
    """Tells a run of placeholders from the next, and of which image it is."""

    def __init__(self, batch: VisionBatch) -> None:
        self.places = set(batch.placeholders.tolist())
        self._grids = batch.pictures.grid_thw.tolist()
        self._kinds = batch.pictures.kinds
        patches, places = sum(prod(grid) for grid in self._grids), len(self.places)
        self._ratio = patches / places if places else 1.0
        self._image, self._left = -1, 0.0

    def take(self, count: int) -> str:
        """What a run of so many placeholders shows."""
        if self._left < 0.5:
            self._image += 1
            self._left = prod(self._grids[self._image]) / self._ratio
        self._left -= count
        frames, rows, columns = self._grids[self._image]
        size = f"{rows} x {columns} patches" + (f", {frames} frames" if frames > 1 else "")
        return f"[{self._kinds[self._image]} {self._image}: {size}, {count} tokens]"


def _sequence(batch: VisionBatch, start: int, stop: int, shown: _Shown, tokenizer: PreTrainedTokenizerBase) -> Text:
    ids, labels = batch.tokens[start:stop].tolist(), batch.labels[start:stop].tolist()
    learnt = [label != IGNORED_LABEL for label in labels]
    if not any(learnt) and not any(ids):
        return Text(f"  [{len(ids):,} places that nothing fills]", style="dim")
    text = Text(f"  [{len(ids):,} tokens, {sum(learnt):,} trained on] ", style="cyan")
    # A label tells of the token after its input; the first token is never predicted, the last label is no input.
    tokens, marks = [*ids, *labels[-1:]], [False, *learnt]
    if not marks[-1]:
        tokens, marks = tokens[:-1], marks[:-1]
    shade = 0
    for first, past in _runs(marks, [start + place in shown.places for place in range(len(tokens))]):
        if start + first in shown.places:
            text.append(shown.take(past - first), style=_IMAGE)
            continue
        written = tokenizer.decode(tokens[first:past], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        text.append(str(written), style=(TRAINED if marks[first] else CONTEXT)[shade])
        shade = 1 - shade
    return text


def _runs(*signs: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """Stretches in which none of the signs changes."""
    states = list(zip(*signs, strict=True))
    changes = [place for place in range(1, len(states)) if states[place] != states[place - 1]]
    yield from pairwise([0, *changes, len(states)])
