"""A Hugging Face tokenizer as the data layer's encoder: whole batches at once, documents with their first and last ids.

A document is what the tokenizer puts before a text (often a begin-of-text token, often nothing), the text, and the
end-of-text token. Text is read as transformers reads it: a special token spelled out in it becomes that token.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from loong_core.errors import Fault, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class HuggingFaceEncoder:
    """`loong_core.data.tokenize.TextEncoder` over a transformers tokenizer.

    Raises:
        UserError: the tokenizer has no end-of-text token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        if tokenizer.eos_token_id is None:
            raise UserError(f"tokenizer {_name(tokenizer)} has no eos_token; documents need one to end with")
        vocabulary = tokenizer.get_vocab()
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        # Worker processes need not import transformers for a tokenizer that is all in its backend.
        self._slow = tokenizer if self._backend is None else None
        self.vocab_size = 1 + max(vocabulary.values())
        self.suffix = (int(tokenizer.eos_token_id),)  # type: ignore[arg-type]
        around = [int(number) for number in tokenizer("").input_ids]
        self.prefix = tuple(around[:-1] if around[-1:] == list(self.suffix) else around)
        content = _slow_content(tokenizer, vocabulary) if self._backend is None else self._backend.to_str()
        self.fingerprint = hashlib.sha256(content.encode("utf-8")).hexdigest()

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, without what stands before and after it."""
        if self._slow is not None:
            return self._slow(texts, add_special_tokens=False).input_ids if texts else []
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def unscored_bytes(self, text: str) -> int:
        """UTF-8 bytes of a document's text that no token predicts.

        These are the bytes of its first token, where no prefix stands before it.
        """
        if self.prefix or not text:
            return 0
        beginning = text[:256]
        if self._slow is not None:
            first = self._slow(beginning, add_special_tokens=False).input_ids[:1]
            return len(str(self._slow.decode(first)).encode("utf-8"))
        offsets = self._backend.encode(beginning, add_special_tokens=False).offsets
        return len(beginning[: offsets[0][1]].encode("utf-8")) if offsets else 0


def _slow_content(tokenizer: PreTrainedTokenizerBase, vocabulary: dict[str, int]) -> str:
    return type(tokenizer).__name__ + json.dumps(sorted(vocabulary.items()))


def tokenizer_faults(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> list[Fault]:
    """What keeps a tokenizer and a model of `vocab_size` embedding rows apart."""
    faults = []
    if tokenizer.eos_token_id is None:
        faults.append(Fault("tokenizer", f"{_name(tokenizer)} has no eos_token; documents need one to end with"))
    largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if largest[1] >= vocab_size:
        faults.append(
            Fault(
                "tokenizer",
                f"{_name(tokenizer)} has ids up to {largest[1]} ({largest[0]!r}), the model's embedding has "
                f"{vocab_size} rows",
                f"use the model's own tokenizer, or train a new model with vocab_size of at least {largest[1] + 1}",
            )
        )
    return faults


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return str(tokenizer.name_or_path or "bytes")
