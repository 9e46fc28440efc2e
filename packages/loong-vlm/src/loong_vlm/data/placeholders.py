"""How a family writes images and videos in a text: the tokens whose embeddings give way to features, and those around.

A family declares one of these; grafted models take that of their tower's family. What is written for a medium is a
text in which each run of placeholder tokens is written once, and the length of each run: a text of a thousand equal
tokens need not be tokenised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from loong_core.errors import UserError
from loong_vlm.parts import Grid

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Written:
    """A medium as text.

    Attributes:
        text: with one placeholder token for each run.
        runs: tokens of each run.
    """

    text: str
    runs: tuple[int, ...]


class PlaceholderLayout(Protocol):
    """How images and videos are written."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The placeholder tokens, each once."""
        ...

    @property
    def surroundings(self) -> tuple[str, ...]:
        """Special tokens that are written around them."""
        ...

    @property
    def shows_times(self) -> bool:
        """Whether a video's text depends on when its frames are shown."""
        ...

    def image(self, grid: Grid) -> Written:
        """An image of this grid, in the place where a conversation shows it."""
        ...

    def video(self, grid: Grid, times: list[float]) -> Written:
        """A video of this grid whose (merged) frames are shown at these seconds."""
        ...


@dataclass(frozen=True)
class QwenLayout:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL and LLaVA-OneVision-1.5.

    Attributes:
        merge: patches of the side of a square that becomes one token.
        timestamps: whether each frame of a video is written apart, after its time (Qwen3-VL).
    """

    merge: int = 2
    timestamps: bool = False
    image_token: str = "<|image_pad|>"
    video_token: str = "<|video_pad|>"
    start_token: str = "<|vision_start|>"
    end_token: str = "<|vision_end|>"

    @property
    def tokens(self) -> tuple[str, ...]:
        """The placeholder tokens."""
        return self.image_token, self.video_token

    @property
    def surroundings(self) -> tuple[str, ...]:
        """Where vision starts and ends."""
        return self.start_token, self.end_token

    @property
    def shows_times(self) -> bool:
        """Whether a video's text depends on when its frames are shown."""
        return self.timestamps

    def image(self, grid: Grid) -> Written:
        """One run between the marks of vision."""
        frames, rows, columns = grid
        run = frames * rows * columns // self.merge**2
        return Written(f"{self.start_token}{self.image_token}{self.end_token}", (run,))

    def video(self, grid: Grid, times: list[float]) -> Written:
        """One run for all frames, or one a frame after its time."""
        frames, rows, columns = grid
        run = rows * columns // self.merge**2
        if not self.timestamps:
            return Written(f"{self.start_token}{self.video_token}{self.end_token}", (frames * run,))
        frame = f"{self.start_token}{self.video_token}{self.end_token}"
        return Written("".join(f"<{time:.1f} seconds>{frame}" for time in times), (run,) * frames)


@dataclass(frozen=True)
class InternLayout:
    """InternVL: as many tokens a tile, whatever it shows.

    Attributes:
        tokens_a_tile: placeholder tokens of one tile.
    """

    tokens_a_tile: int = 256
    context_token: str = "<IMG_CONTEXT>"
    start_token: str = "<img>"
    end_token: str = "</img>"

    @property
    def tokens(self) -> tuple[str, ...]:
        """The placeholder token."""
        return (self.context_token,)

    @property
    def surroundings(self) -> tuple[str, ...]:
        """Where an image starts and ends."""
        return self.start_token, self.end_token

    @property
    def shows_times(self) -> bool:
        """Frames are numbered, not timed."""
        return False

    def image(self, grid: Grid) -> Written:
        """All tiles in one run, and a new line."""
        return Written(f"{self._one}\n", (grid[0] * self.tokens_a_tile,))

    def video(self, grid: Grid, times: list[float]) -> Written:
        """A numbered line a frame, and a new line."""
        lines = "\n".join(f"Frame{number + 1}: {self._one}" for number in range(grid[0]))
        return Written(f"{lines}\n", (self.tokens_a_tile,) * grid[0])

    @property
    def _one(self) -> str:
        return f"{self.start_token}{self.context_token}{self.end_token}"


def placeholder_ids(layout: PlaceholderLayout, tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The id of each placeholder token.

    Raises:
        UserError: the tokenizer lacks a placeholder, or a token that is written around one.
    """
    vocabulary = tokenizer.get_vocab()
    added = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    missing = [token for token in (*layout.tokens, *layout.surroundings) if token not in added]
    if missing:
        raise UserError(
            f"the tokenizer {tokenizer.name_or_path or 'of the run'} has no token {' and no '.join(missing)}, in whose "
            "place images would go; take the tokenizer of a vision-language model, or add them to it as special tokens"
        )
    return {token: vocabulary[token] for token in layout.tokens}
