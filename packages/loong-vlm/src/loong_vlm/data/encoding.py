"""Conversations with images as token ids: rendered and tokenised by loong-llm, with placeholders as long as images are.

The text is tokenised with one placeholder a run, which is then repeated; special tokens are tokenised apart from what
is around them, so this gives the ids of the whole text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loong_core.errors import UserError
from loong_llm.conversations.encoding import ConversationEncoder, RenderSettings
from loong_llm.conversations.messages import BadSample, Conversation
from loong_llm.conversations.rendering import RenderedText
from loong_vlm.data.forms import mark, split_at_marks
from loong_vlm.data.media import Medium, Stretch
from loong_vlm.data.pixels.image_files import image_size
from loong_vlm.data.pixels.processor import PixelProcessor
from loong_vlm.data.pixels.video import frame_times
from loong_vlm.data.pixels.video_files import video_facts
from loong_vlm.data.placeholders import FeatureRuns, PlaceholderLayout, placeholder_ids
from loong_vlm.parts import Grid

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_HEADER_BYTES = 1 << 18


@dataclass(frozen=True)
class Measured:
    """A medium of which the grid is known.

    Attributes:
        medium: the image or video.
        grid: frames or tiles, rows and columns of patches.
        times: of a video, when its merged frames are shown, in seconds.
        seconds: of a video, between two temporal patches.
    """

    medium: Medium
    grid: Grid
    times: list[float]
    seconds: float = 1.0


@dataclass(frozen=True)
class Placed:
    """A medium in a sample's tokens.

    Attributes:
        measured: the medium and its grid.
        first: place of the token before its first placeholder, from which on a cut would go through it.
        stop: place after its last placeholder.
    """

    measured: Measured
    first: int
    stop: int


@dataclass(frozen=True)
class VisionSample:
    """One text to train on, with what it shows.

    Attributes:
        ids: `[tokens]` int32.
        trained: `[tokens]` bool.
        media: in the order of the text.
    """

    ids: NDArray[np.int32]
    trained: NDArray[np.bool_]
    media: list[Placed]


class VisionEncoder:
    """Renders, measures and tokenises. Sent to worker processes.

    Args:
        tokenizer: a fast one that has the layout's tokens.
        settings: how conversations become text.
        layout: how images are written; None: the run is for text only.
        processor: gives images their grid; None with `layout` only.
        runs: how many placeholders an image or video of a grid has in each of its stretches; likewise.

    Raises:
        UserError: the tokenizer lacks a token, or has no chat template.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        settings: RenderSettings,
        layout: PlaceholderLayout | None,
        processor: PixelProcessor | None,
        runs: FeatureRuns | None = None,
    ) -> None:
        if len({layout is None, processor is None, runs is None}) > 1:
            raise ValueError("a layout of placeholders, a pixel processor and runs of features belong together")
        self.text = ConversationEncoder(tokenizer, settings)
        self.layout = layout
        self.processor = processor
        self._runs = runs
        self.placeholder_ids = {} if layout is None else placeholder_ids(layout, tokenizer)
        self.vocab_size = self.text.vocab_size
        parts = [self.text.fingerprint, repr(layout), repr(runs), "" if processor is None else processor.fingerprint]
        self.fingerprint = hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def encode(self, conversation: Conversation, media: Sequence[Medium]) -> list[VisionSample]:
        """The samples of a conversation: one, or several where the template writes earlier turns unlike the last.

        Args:
            conversation: with a mark where each medium is shown.
            media: in the order of their marks.

        Raises:
            BadSample: the template refuses it, a medium cannot be read, the text itself holds placeholder tokens, or no
                token is trained on.
        """
        if media and self.layout is None:
            raise BadSample(
                "media", f"it shows {len(media)} images, and the model reads text only; leave such samples out"
            )
        measured = [self._measure(medium) for medium in media]
        texts = self.text.render(conversation)
        for text in texts:
            self._refuse_placeholders(text)
        expanded = [self._expand(text, measured) for text in texts]
        encoded = self.text.encode([text for text, _ in expanded])
        samples = []
        for sample, (_, shown) in zip(encoded, expanded, strict=True):
            if isinstance(sample, BadSample):
                raise sample
            samples.append(self._repeat(sample.ids, sample.trained, shown))
        return samples

    def prompt(self, question: str, media: Sequence[Medium]) -> VisionSample:
        """What is put to a model: a user's question behind its images, up to where the assistant speaks.

        Raises:
            UserError: an image cannot be read, or the model reads text only.
        """
        if media and self.layout is None:
            raise UserError(f"the question shows {len(media)} images, and the model reads text only")
        measured = [measure(medium, self._processor) for medium in media]
        marks = "".join(mark(number) for number in range(len(media)))
        written = self.text.renderer.prompt([{"role": "user", "content": marks + question}])
        text, shown = self._expand(RenderedText(written, []), measured)
        ids = np.array(self.text.ids(text.text), np.int32)
        return self._repeat(ids, np.zeros(len(ids), np.bool_), shown)

    def _measure(self, medium: Medium) -> Measured:
        try:
            return measure(medium, self._processor)
        except UserError as error:
            raise BadSample("unreadable", _told(medium, error)) from error

    @property
    def _processor(self) -> PixelProcessor:
        assert self.processor is not None
        return self.processor

    def _refuse_placeholders(self, text: RenderedText) -> None:
        found = next((token for token in self.placeholder_ids if token in text.text), None)
        if found is not None:
            raise BadSample(
                "placeholders",
                f"the text itself holds {found}, the token that stands for an image, so it shows more images than it "
                "has; write <image>, or take the token out",
            )

    def _expand(self, text: RenderedText, measured: Sequence[Measured]) -> tuple[RenderedText, list[_Shown]]:
        """The text with media written out, and these in its order; trained stretches move along."""
        pieces: list[str] = []
        shown: list[_Shown] = []
        moves: list[tuple[int, int]] = []  # from which character on, by how much
        position = shift = 0
        for start, stop, number in split_at_marks(text.text):
            each = measured[number]
            added, runs = self._written(each)
            if added.endswith("\n") and text.text.startswith("\n", stop):
                added = added[:-1]
            pieces += [text.text[position:start], added]
            position = stop
            shift += len(added) - (stop - start)
            moves.append((stop, shift))
            shown.append(_Shown(each, runs))
        pieces.append(text.text[position:])

        def moved(place: int) -> int:
            return place + next((by for since, by in reversed(moves) if since <= place), 0)

        spans = [(moved(start), moved(stop)) for start, stop in text.spans]
        return RenderedText("".join(pieces), spans), shown

    def _written(self, each: Measured) -> tuple[str, list[int]]:
        """A medium's text, and how often each of its placeholders is repeated."""
        assert self.layout is not None
        assert self._runs is not None
        is_video = each.medium.kind == "video"
        text = self.layout.video(each.times) if is_video else self.layout.image()
        runs = self._runs(each.grid, is_video)
        written = sum(text.count(token) for token in self.layout.tokens)
        return text, runs if written == len(runs) else [sum(runs)]

    def _repeat(self, ids: NDArray[np.int32], trained: NDArray[np.bool_], shown: list[_Shown]) -> VisionSample:
        """Each placeholder repeated as often as its run is long."""
        runs = np.array([run for each in shown for run in each.runs], np.int64)
        places = np.flatnonzero(np.isin(ids, list(self.placeholder_ids.values())))
        if len(places) != len(runs):
            raise BadSample(
                "placeholders", f"{len(places)} placeholders for {len(runs)} runs: the tokenizer splits placeholders"
            )
        counts = np.ones(len(ids), np.int64)
        counts[places] = runs
        starts = np.cumsum(counts) - counts
        media: list[Placed] = []
        done = 0
        for each in shown:
            first, last = places[done], places[done + len(each.runs) - 1]
            begin, stop = max(int(starts[first]) - 1, 0), int(starts[last] + counts[last])
            media.append(Placed(each.measured, begin, stop))
            done += len(each.runs)
        return VisionSample(np.repeat(ids, counts), np.repeat(trained, counts), media)


@dataclass(frozen=True)
class _Shown:
    """A medium written in a text, in runs of so many placeholders."""

    measured: Measured
    runs: list[int]


def measure(medium: Medium, processor: PixelProcessor) -> Measured:
    """The grid of a medium, from its header.

    Raises:
        UserError: it is missing, unreadable, empty, or of a shape that the model does not read.
    """
    if medium.kind == "image":
        height, width = _image_size(medium)
        return Measured(medium, processor.image_grid(height, width), [])
    facts = video_facts(video_source(medium))
    indices = processor.frames.indices(facts, medium.per_second)
    times = frame_times(indices, facts.rate, processor.temporal)
    taken_per_second = len(indices) / facts.frames * facts.rate
    grid = processor.video_grid(len(indices), facts.height, facts.width)
    return Measured(medium, grid, times, processor.temporal / taken_per_second)


def video_source(medium: Medium) -> Path | bytes:
    """What FFmpeg is to open: the file where it is one of its own, else the bytes."""
    source = medium.source
    if isinstance(source, Stretch) and source.size < 0 and source.path.is_file():
        return source.path
    return medium.read()


def _image_size(medium: Medium) -> tuple[int, int]:
    """Height and width; most files tell them within their first bytes."""
    source = medium.source
    if isinstance(source, bytes):
        return image_size(source)
    whole = source.size if source.size >= 0 else source.path.stat().st_size if source.path.is_file() else 0
    if whole > _HEADER_BYTES:
        try:
            return image_size(Stretch(source.path, source.offset, _HEADER_BYTES).read())
        except UserError:
            pass  # the header goes on, or the file is damaged: all of it tells
    return image_size(source.read())


def _told(medium: Medium, error: UserError) -> str:
    text = str(error)
    return text if isinstance(medium.source, Stretch) and str(medium.source.path) in text else f"{medium}: {text}"
