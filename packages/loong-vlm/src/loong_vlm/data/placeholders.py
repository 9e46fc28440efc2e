"""How a family writes images and videos in a text: the tokens whose embeddings give way to features, and those around.

A family declares one of these; grafted models take that of their language model's family. Each run of placeholder
tokens is written as one token, which is repeated once the text is tokenised: how often is told by `FeatureRuns`, from
the model's projector and its rule of positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Protocol

from loong_core.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from loong_vlm.parts import Grid, PositionRule, ProjectorConfig


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

    def image(self) -> str:
        """An image, with one placeholder token, in the place where a conversation shows it."""
        ...

    def video(self, times: list[float]) -> str:
        """A video whose (merged) frames are shown at these seconds: one placeholder token, or one for each frame."""
        ...


@dataclass(frozen=True)
class QwenLayout:
    """Qwen2-VL, Qwen2.5-VL, Qwen3-VL and LLaVA-OneVision-1.5.

    Attributes:
        timestamps: whether each frame of a video is written apart, after its time (Qwen3-VL).
    """

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

    def image(self) -> str:
        """Between the marks of vision."""
        return f"{self.start_token}{self.image_token}{self.end_token}"

    def video(self, times: list[float]) -> str:
        """All frames between the marks of vision, or each after its time."""
        frame = f"{self.start_token}{self.video_token}{self.end_token}"
        return "".join(f"<{time:.1f} seconds>{frame}" for time in times) if self.timestamps else frame


@dataclass(frozen=True)
class InternLayout:
    """InternVL: tiles in one run, frames in numbered lines, and a new line behind."""

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

    def image(self) -> str:
        """All tiles together."""
        return f"{self.start_token}{self.context_token}{self.end_token}\n"

    def video(self, times: list[float]) -> str:
        """A line for each frame."""
        one = f"{self.start_token}{self.context_token}{self.end_token}"
        return "".join(f"Frame{number + 1}: {one}\n" for number in range(len(times)))


@dataclass(frozen=True)
class FeatureRuns:
    """How many features, and so placeholders, an image or video has in each of its stretches of the text.

    Attributes:
        projector: tells how many features a grid of patches becomes.
        positions: tells in how many stretches they stand.
    """

    projector: ProjectorConfig
    positions: PositionRule

    def __call__(self, grid: Grid, is_video: bool) -> list[int]:
        """Features of each stretch."""
        return [prod(run) for run in self.positions.runs(self.projector.feature_grid(grid), is_video)]


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
