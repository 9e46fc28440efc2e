"""Writing on from prompts, several at a time, each token computed once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from loong_core.data.batch import PackedBatch
from loong_core.errors import UserError
from loong_core.nn.key_value_cache import KeyValueCache
from loong_llm.conversations.encoding import RenderSettings, make_renderer
from loong_llm.inference import OpenedModel
from loong_llm.sampling import Sampling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNFINISHED = "\ufffd"
"""What a tokenizer gives for the bytes of a character that has not all its bytes yet."""

_PATIENCE = 8
"""Tokens to wait for a character's other bytes; a character has at most four."""

Prompt = str | Sequence[int]
"""A text, or ids."""

Ended = Literal["end", "stop", "length"]
"""Why no more is written."""

OnText = Callable[[int, str], None]
"""Called with the number of a prompt and the text that was added to it."""


@dataclass(frozen=True)
class Generation:
    """What was written.

    Attributes:
        prompt: as given.
        text: what follows it, a stop sequence and what its last token says after it included.
        tokens: its ids, without the end-of-text token.
        ended: `end` for an end-of-text token, `stop` for a stop sequence, `length` for the number of tokens asked for
            or that the model can take.
    """

    prompt: Prompt
    text: str
    tokens: list[int]
    ended: Ended


def chat_prompts(model: OpenedModel, said: Sequence[str], system: str | None = None) -> list[str]:
    """What a user says, each as a conversation that the assistant is to answer, written by the tokenizer's template.

    Raises:
        UserError: the tokenizer has no chat template, or it refuses.
    """
    renderer = make_renderer(model.tokenizer, RenderSettings())
    before = [] if system is None else [{"role": "system", "content": system}]
    return [renderer.prompt([*before, {"role": "user", "content": each}]) for each in said]


@torch.no_grad()  # not inference mode: a model in training writes samples too, and keeps what it makes here
def generate(
    model: OpenedModel,
    prompts: Sequence[Prompt],
    sampling: Sampling | None = None,
    *,
    max_new_tokens: int = 128,
    stop: Sequence[str] = (),
    rendered: bool = False,
    on_text: OnText | None = None,
) -> list[Generation]:
    """Write on from each prompt until the model ends its text or `max_new_tokens` are written.

    Args:
        model: what writes.
        prompts: beginnings; an empty one begins a new document.
        sampling: how tokens are chosen; None: the best one every time.
        max_new_tokens: of each prompt.
        stop: texts that end what is written when they occur in it.
        rendered: whether a chat template wrote the prompts: their special tokens then stand in the text, and the
            tokenizer adds none.
        on_text: told of text as it comes, in whole characters.

    Returns:
        One for each prompt, in their order.

    Raises:
        UserError: there is no prompt, or one is longer than the model can take.
    """
    if not prompts:
        raise UserError("no prompt; give at least one, an empty one begins a new document")
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens {max_new_tokens} must be at least 1")
    sampling = sampling or Sampling()
    ids = [_encode(model, prompt, number, rendered) for number, prompt in enumerate(prompts)]
    room = [min(max_new_tokens, (model.max_length or len(own) + max_new_tokens) - len(own)) for own in ids]
    ends = _end_ids(model)
    generators = sampling.generators(len(prompts))
    streams = [TextStream(model.tokenizer) for _ in prompts]
    written: list[list[int]] = [[] for _ in prompts]
    ended: list[Ended | None] = [None] * len(prompts)
    cache = KeyValueCache(len(prompts), max(map(len, ids)) + max(room))
    fresh = list(ids)
    while True:
        scores = _last_scores(model, fresh, cache)
        for number, token in enumerate(sampling.choose(scores, generators)):
            if ended[number] is None:
                if token in ends:
                    ended[number] = "end"
                else:
                    written[number].append(token)
                    ended[number] = "length" if len(written[number]) == room[number] else None
                text = streams[number].add([] if token in ends else [token], last=ended[number] is not None)
                if text and on_text is not None:
                    on_text(number, text)
                if text and ended[number] is None and any(each and each in streams[number].text for each in stop):
                    ended[number] = "stop"
            # A sequence that has ended is fed on, unread, so that all of them stay in step.
            fresh[number] = [token]
        if all(ended):
            break
    return [
        Generation(prompt, stream.text, tokens, reason or "length")
        for prompt, stream, tokens, reason in zip(prompts, streams, written, ended)
    ]


def _last_scores(model: OpenedModel, fresh: Sequence[Sequence[int]], cache: KeyValueCache) -> torch.Tensor:
    """Scores of what follows each sequence, `[sequences, vocab_size]`, given its new tokens."""
    lengths = [len(own) for own in fresh]
    tokens = torch.tensor([token for own in fresh for token in own])
    packed = PackedBatch.from_lengths(tokens, tokens, lengths)
    batch = PackedBatch(
        packed.tokens,
        packed.labels,
        cache.positions(lengths),
        packed.cu_seqlens,
        packed.max_seqlen,
        packed.uniform_length,
    )
    logits = model.decoder.logits(batch.to(model.device), cache=cache)
    return logits[packed.cu_seqlens[1:].long().to(model.device) - 1]


def _encode(model: OpenedModel, prompt: Prompt, number: int, rendered: bool) -> list[int]:
    tokenizer = model.tokenizer
    if isinstance(prompt, str):
        try:
            prompt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(f"prompt {number} is not UTF-8 at character {error.start}; give it as UTF-8 text") from None
        ids = list(tokenizer(prompt, add_special_tokens=not rendered).input_ids)
        if not rendered and ids and ids[-1] == tokenizer.eos_token_id:
            ids.pop()
    else:
        ids = list(prompt)
    if not ids:
        start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
        if start is None:
            raise UserError(f"prompt {number} is empty, and the tokenizer has no token that begins a document")
        ids = [int(start)]  # type: ignore[arg-type]
    if model.max_length is not None and len(ids) >= model.max_length:
        raise UserError(
            f"prompt {number} has {len(ids)} tokens, the model takes {model.max_length} with what it writes; shorten it"
        )
    return ids


def _end_ids(model: OpenedModel) -> set[int]:
    """Ids that end a text: the tokenizer's, and those of the model's config."""
    named = model.source.hf_config.get("eos_token_id")
    own = named if isinstance(named, list) else [named]
    return {int(end) for end in [*own, model.tokenizer.eos_token_id] if isinstance(end, int)}


class TextStream:
    """Ids in, text out, never half a character and never a text that later changes.

    What tokens say can depend on those before them (a leading space, a character's other bytes), so each piece is
    decoded with the piece before it and that one's text is taken off.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._told: list[int] = []
        self._pending: list[int] = []
        self.text = ""

    def add(self, ids: list[int], *, last: bool = False) -> str:
        """The text that is certain now and was not before; with `last`, all that is left."""
        self._pending += ids
        before = self._decode(self._told)
        together = self._decode([*self._told, *self._pending])
        unfinished = together.endswith(_UNFINISHED) and len(self._pending) < _PATIENCE
        if not self._pending or (unfinished and not last):
            return ""
        fresh = together[len(before) :]
        self._told, self._pending = self._pending, []
        self.text += fresh
        return fresh

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
