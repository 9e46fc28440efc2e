"""A small classifier that has seen real digits only: what it makes of samples says whether they are what was asked."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loong_dit.digits.videos import Digits


class DigitJudge:
    """A support vector machine on the pixels of real digits."""

    def __init__(self, digits: Digits) -> None:
        from sklearn.svm import SVC

        self._classifier = SVC(C=10.0, gamma="scale").fit(digits.pictures.flatten(1).numpy(), digits.labels.numpy())

    def recognise(self, pictures: Tensor) -> Tensor:
        """`[count, 8, 8]` in -1 to 1 to the digits that are seen, `[count]`."""
        return torch.from_numpy(self._classifier.predict(pictures.clamp(-1, 1).flatten(1).numpy()))

    def share_right(self, pictures: Tensor, wanted: Tensor | Sequence[int]) -> float:
        """Share of pictures that are seen as what was wanted."""
        return float((self.recognise(pictures) == torch.as_tensor(wanted)).double().mean())
