"""What a policy is told in words, and as which tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from loong_core.errors import Fault

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BINS = np.linspace(-1, 1, 257)[:-1]

BUCKET = 8
"""Prompts of a microbatch are padded to a multiple of this many tokens, so that there are few different lengths."""


def pi0_prompt(task: str) -> str:
    """A task as Pi0 is told it: one line."""
    return task if task.endswith("\n") else f"{task}\n"


def pi05_prompt(task: str, state: NDArray[np.float32]) -> str:
    """A task and a normalised state as Pi0.5 is told them: each number of the state as one of 256 bins over [-1, 1].

    What lies below is bin -1, and what lies above bin 255.
    """
    bins = np.digitize(state, _BINS) - 1
    cleaned = task.strip().replace("_", " ").replace("\n", " ")
    return f"Task: {cleaned}, State: {' '.join(map(str, bins))};\nAction: "


def prompt_tokens(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[str], longest: int
) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
    """Prompts as tokens, padded on the right.

    Args:
        tokenizer: the policy's.
        prompts: one a sample.
        longest: tokens at which a prompt is cut off.

    Returns:
        `[prompts, length]`, the length being that of the longest, rounded up; and which of these are there, None where
        all prompts are equally long (then nothing is rounded).
    """
    ids = tokenizer(list(prompts), truncation=True, max_length=longest)["input_ids"]
    lengths = np.array([len(each) for each in ids])
    if lengths.min() == lengths.max():
        return np.array(ids, np.int64), None
    length = min(-(-int(lengths.max()) // BUCKET) * BUCKET, longest)
    tokens = np.zeros((len(ids), length), np.int64)
    for row, each in zip(tokens, ids, strict=True):
        row[: len(each)] = each
    return tokens, np.arange(length)[None] < lengths[:, None]


def vocabulary_faults(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> list[Fault]:
    """Whether a policy knows every token of a tokenizer."""
    if len(tokenizer) <= vocab_size:
        return []
    what = f"has {len(tokenizer)} tokens, the policy's vocab_size is {vocab_size}: they do not belong together"
    return [Fault("tokenizer", what, "take the tokenizer that the policy was trained with")]
