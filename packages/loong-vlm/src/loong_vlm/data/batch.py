"""The one form in which text with images travels: packed tokens, and the packed patches of their images.

A sample's text holds placeholder tokens where features of its images go, in the order of the images. Patches of all
images of a microbatch are laid end to end, as tokens are; a video is an image of several frames.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from loong_core.data.batch import PackedBatch
from loong_core.data.context_cut import cut_batch, rows_of_ranks
from loong_core.nn.token_features import TokenFeatures
from loong_core.parallel.context import ParallelContext

Kind = Literal["image", "video"]


@dataclass(frozen=True)
class Pictures:
    """Images and videos as a tower reads them, packed end to end.

    Attributes:
        patches: `[patches, patch_dim]` float, pixels of one patch a row, in the order of the model's processor.
        grid_thw: `[images, 3]` int64, of each image its frames (after temporal patching), rows and columns of patches;
            always on the host, where everything that follows from it is worked out.
        kinds: of each image whether it is an image or a video.
        seconds: of each video the time between its temporal patches, in seconds; of images it has no meaning. Empty: a
            second each.
    """

    patches: Tensor
    grid_thw: Tensor
    kinds: tuple[Kind, ...]
    seconds: tuple[float, ...] = ()

    @property
    def count(self) -> int:
        """How many images and videos there are."""
        return len(self.kinds)

    @property
    def patch_counts(self) -> list[int]:
        """Patches of each image."""
        return self.grid_thw.prod(1).tolist()

    def select(self, numbers: Sequence[int]) -> Pictures:
        """Some of the images, in the order given."""
        parts = self.patches.split(self.patch_counts)
        chosen = [parts[number] for number in numbers]
        patches = torch.cat(chosen) if chosen else self.patches[:0]
        index = torch.tensor(list(numbers), dtype=torch.int64)
        kinds: tuple[Kind, ...] = tuple(self.kinds[number] for number in numbers)
        seconds = tuple(self.seconds[number] for number in numbers) if self.seconds else ()
        return Pictures(patches, self.grid_thw[index], kinds, seconds)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Pictures:
        """The same with the patches on `device`."""
        return replace(self, patches=self.patches.to(device, non_blocking=non_blocking))

    @staticmethod
    def none(patch_dim: int) -> Pictures:
        """No image at all."""
        return Pictures(torch.zeros(0, patch_dim), torch.zeros(0, 3, dtype=torch.int64), ())

    @staticmethod
    def join(parts: Sequence[Pictures]) -> Pictures:
        """The images of several samples, one sample after the other."""
        seconds: tuple[float, ...] = ()
        if any(part.seconds for part in parts):
            seconds = tuple(each for part in parts for each in part.seconds or (1.0,) * part.count)
        return Pictures(
            torch.cat([part.patches for part in parts]),
            torch.cat([part.grid_thw for part in parts]),
            tuple(kind for part in parts for kind in part.kinds),
            seconds,
        )


@dataclass(frozen=True)
class Shown:
    """Where one rank's tokens show features.

    Attributes:
        rows: `[shown]` int64, rows of the rank's tokens whose embeddings give way to features, in order.
        features: `[shown]` int64, which of the microbatch's features goes to each.
        tokens: how many tokens the rank has.
    """

    rows: Tensor
    features: Tensor
    tokens: int


@dataclass(frozen=True)
class VisionBatch:
    """A microbatch of text with images, or one context rank's share of its tokens (of its images it has all).

    All but the text stays on the host: what follows from the grids is worked out there, and each rank takes to its
    device the images that it encodes.

    Attributes:
        text: the tokens; `position_ids` may be `[tokens, axes]`, as the model's rotary embedding wants them.
        pictures: the images of the microbatch, in the order in which the text shows them.
        placeholders: `[features]` int64, rows of the whole microbatch whose embeddings give way to features, in order.
        shown: of each context rank, in order, where its tokens show which features; one, of all, where tokens are not
            shared.
        fed: gives what stands in the place of this rank's placeholders, where images are encoded apart from the text.
    """

    text: PackedBatch
    pictures: Pictures
    placeholders: Tensor
    shown: tuple[Shown, ...] = ()
    fed: Callable[[], TokenFeatures] | None = None

    def __post_init__(self) -> None:
        if not self.shown:
            every = torch.arange(self.placeholders.shape[0])
            object.__setattr__(self, "shown", (Shown(self.placeholders, every, self.text.tokens.shape[0]),))

    @property
    def tokens(self) -> Tensor:
        """The text's tokens: engines ask how many there are."""
        return self.text.tokens

    @property
    def labels(self) -> Tensor:
        """The text's labels."""
        return self.text.labels

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> VisionBatch:
        """The same batch with its text on `device`."""
        return replace(self, text=self.text.to(device, non_blocking=non_blocking))

    def share_for(self, context: ParallelContext) -> VisionBatch:
        """This context rank's share: its tokens; the images stay whole."""
        return replace(self, text=cut_batch(self.text, context), shown=self.shown_by(context))

    def shown_by(self, context: ParallelContext) -> tuple[Shown, ...]:
        """Of each context rank, where its tokens of this whole microbatch show which features."""
        if context.context.size == 1:
            return self.shown
        feature_at = torch.full_like(self.text.tokens, -1)
        feature_at[self.placeholders] = torch.arange(self.placeholders.shape[0])
        shown = []
        for rows in rows_of_ranks(self.text, context):
            features = feature_at[rows]
            places = (features >= 0).nonzero().squeeze(1)
            shown.append(Shown(places, features[places], len(rows)))
        return tuple(shown)
