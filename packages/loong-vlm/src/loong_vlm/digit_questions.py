"""Questions about scikit-learn's handwritten digits: which one, which of two is larger, what is their sum.

The pictures are real (UCI's optical recognition of handwritten digits, 1,797 of 8 x 8 pixels). A fifth of them
is held out: no question that is trained on shows one of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["which", "compare", "sum"]
KINDS: dict[Kind, tuple[str, int, float]] = {
    "which": ("Which digit?", 1, 0.1),
    "compare": ("Larger or smaller?", 2, 0.5),
    "sum": ("Their sum?", 2, 0.1),
}
"""Of each kind its question, its pictures, and about what share of answers is right by chance."""

SIDE = 8
HELD_OUT_SHARE = 0.2


@dataclass(frozen=True)
class DigitQuestion:
    """A question, the pictures it is about, and its answer.

    Attributes:
        kind: of the question.
        pictures: numbers of pictures in the set.
        answer: what is to be said.
    """

    kind: Kind
    pictures: tuple[int, ...]
    answer: str

    @property
    def text(self) -> str:
        """What is asked."""
        return KINDS[self.kind][0]


def digit_pictures() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The pictures, `[1797, 8, 8]` from 0 to 255, and the digits that they show."""
    from sklearn.datasets import load_digits

    found: Any = load_digits()
    pictures = np.clip(found.images * 255.0 / 16.0, 0, 255).round().astype(np.uint8)
    return pictures, found.target.astype(np.int64)


def digit_questions(
    digits: NDArray[np.int64], pictures: NDArray[np.int64], kind: Kind, count: int, seed: int
) -> list[DigitQuestion]:
    """Questions of a kind about pictures drawn at random among `pictures` (numbers into `digits`)."""
    draw = np.random.default_rng([seed, list(KINDS).index(kind)])
    found: list[DigitQuestion] = []
    while len(found) < count:
        shown = tuple(int(each) for each in draw.choice(pictures, KINDS[kind][1], replace=False))
        own = [int(digits[each]) for each in shown]
        if kind == "which":
            answer = str(own[0])
        elif kind == "sum":
            answer = str(sum(own))
        elif own[0] == own[1]:
            continue
        else:
            answer = "larger" if own[0] > own[1] else "smaller"
        found.append(DigitQuestion(kind, shown, answer))
    return found


def split() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the pictures that are trained on, and of those held out."""
    _, digits = digit_pictures()
    order = np.random.default_rng(0).permutation(len(digits))
    last = round(len(digits) * (1 - HELD_OUT_SHARE))
    return order[:last], order[last:]


def write_pictures(folder: Path) -> None:
    """Each picture as a PNG file, `digits/NUMBER.png` of the folder."""
    from PIL import Image

    (folder / "digits").mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(digit_pictures()[0]):
        Image.fromarray(pixels).convert("RGB").save(folder / "digits" / f"{number}.png")


def write_questions(path: Path, questions: list[DigitQuestion]) -> None:
    """Conversations with images in OpenAI's form, one a line; pictures are named from the file's folder."""
    with path.open("w", encoding="utf-8") as stream:
        for each in questions:
            shown = [{"type": "image", "image": f"digits/{number}.png"} for number in each.pictures]
            asked = {"role": "user", "content": [*shown, {"type": "text", "text": each.text}]}
            stream.write(json.dumps({"messages": [asked, {"role": "assistant", "content": each.answer}]}) + "\n")
