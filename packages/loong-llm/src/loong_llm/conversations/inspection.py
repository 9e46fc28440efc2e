"""Training data as the model sees them, for people: tokens, what is trained on, and what shares a sequence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from rich.text import Text

from loong_core.data.batch import IGNORED_LABEL, PackedBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TRAINED = ("bold green", "bold bright_green")
CONTEXT = ("bright_black", "white")
"""Colours of tokens that are trained on and of those that are not; neighbouring tokens take turns."""


def inspect_batches(batches: Iterable[PackedBatch], tokenizer: PreTrainedTokenizerBase) -> Iterator[Text]:
    """A text for each sequence of each microbatch: a headline, then its tokens.

    Args:
        batches: as a stream gives them.
        tokenizer: to write the tokens with.
    """
    legend = Text("trained on", style=TRAINED[0])
    yield legend.append(", read only", style=CONTEXT[0])
    for number, batch in enumerate(batches):
        bounds = batch.cu_seqlens.tolist()
        counts = (batch.labels != IGNORED_LABEL).tolist()
        yield Text(
            f"microbatch {number}: {bounds[-1]:,} tokens in {len(bounds) - 1} sequences, "
            f"{sum(counts):,} trained on ({100 * sum(counts) / max(bounds[-1], 1):.1f} %)",
            style="bold",
        )
        for start, stop in pairwise(bounds):
            yield _sequence(batch.tokens[start:stop].tolist(), batch.labels[start:stop].tolist(), tokenizer)


def _sequence(tokens: list[int], labels: list[int], tokenizer: PreTrainedTokenizerBase) -> Text:
    trained = [label != IGNORED_LABEL for label in labels]
    if not any(trained) and not any(tokens):
        return Text(f"  [{len(tokens):,} places that nothing fills]", style="dim")
    text = Text(f"  [{len(tokens):,} tokens, {sum(trained):,} trained on] ", style="cyan")
    # A label tells of the token after its input; the first token is never predicted, the last label is no input.
    ids, marks = [*tokens, *labels[-1:]], [False, *trained]
    if not marks[-1]:
        ids, marks = ids[:-1], marks[:-1]
    shade = 0
    for written, mark in _pieces(ids, marks, tokenizer):
        text.append(written, style=(TRAINED if mark else CONTEXT)[shade])
        shade = 1 - shade
    return text


def _pieces(ids: list[int], marks: list[bool], tokenizer: PreTrainedTokenizerBase) -> Iterator[tuple[str, bool]]:
    """The tokens' texts; tokens that are only together a character are written together."""
    waiting: list[int] = []
    for place, (token, mark) in enumerate(zip(ids, marks, strict=True)):
        waiting.append(token)
        written = tokenizer.decode(waiting, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        whole = "\ufffd" not in written or len(waiting) == 4
        if whole or place == len(ids) - 1 or marks[place + 1] != mark:
            yield str(written), mark
            waiting = []
