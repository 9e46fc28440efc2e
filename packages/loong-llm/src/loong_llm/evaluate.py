"""How well a model predicts text: loss, perplexity, bits per byte.

Documents are judged apart from each other, each cut into windows (`loong_core.data.held_out`): every token but the
first of a document is predicted once, its end-of-text token included. Loss is in nats a token. Bits per byte are all
documents' nats, over ln 2, over the UTF-8 bytes of the text that was predicted, so that models with different
tokenizers can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from loong_core.data.batch import IGNORED_LABEL
from loong_core.data.documents import blocks, read_block
from loong_core.data.held_out import HeldOut
from loong_core.data.indexed import open_indexed
from loong_core.data.sources import SourceFile, resolve
from loong_core.data.token_store import TokenStore
from loong_core.data.tokenize import batches, encode_pieces
from loong_core.errors import UserError
from loong_llm.inference import OpenedModel
from loong_llm.tokenizer import HuggingFaceEncoder

_DEFAULT_LENGTH = 2048


@dataclass(frozen=True)
class Evaluation:
    """The figures.

    Attributes:
        loss: nats a token.
        perplexity: `exp(loss)`.
        bits_per_byte: None for data that are no text (`.bin`/`.idx`).
        tokens: how many were predicted.
        documents: how many were read.
        text_bytes: UTF-8 bytes of the predicted text, None likewise.
        sequence_length: tokens of a window.
        stride: tokens from one window's beginning to the next.
    """

    loss: float
    perplexity: float
    bits_per_byte: float | None
    tokens: int
    documents: int
    text_bytes: int | None
    sequence_length: int
    stride: int


@torch.inference_mode()
def evaluate(
    model: OpenedModel,
    paths: Sequence[str],
    *,
    text_key: str = "text",
    sequence_length: int | None = None,
    stride: int | None = None,
    batch_tokens: int = 8192,
    on_progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Judge a model by text.

    Args:
        model: what predicts.
        paths: files, folders, globs, or prefixes of `.bin`/`.idx` pairs.
        text_key: field or column that holds a document's text.
        sequence_length: tokens of a window; None: what the model is made for, at most 2048.
        stride: tokens between the beginnings of two windows; None: `sequence_length`. A smaller one gives each token
            more context and takes longer.
        batch_tokens: tokens of one forward pass, about.
        on_progress: called with rows done and rows in all.

    Raises:
        UserError: what is wrong with the data, or a window that the model cannot take.
    """
    length = sequence_length or min(model.max_length or _DEFAULT_LENGTH, _DEFAULT_LENGTH)
    if model.max_length is not None and length > model.max_length:
        raise UserError(f"sequence_length {length} is more than the {model.max_length} tokens the model is made for")
    if stride is not None and not 0 < stride <= length:
        raise UserError(f"stride {stride} must be between 1 and sequence_length {length}")
    stores, text_bytes = read_stores(paths, text_key, HuggingFaceEncoder(model.tokenizer))
    held_out = HeldOut(stores, length, stride=stride)
    rows = max(1, batch_tokens // length)
    total, counted, done = 0.0, 0, 0
    for (batch,) in held_out.steps(global_batch_size=rows, micro_batch_size=rows):
        if int(batch.tokens.max()) >= model.source.config.vocab_size:
            raise UserError(
                f"the data hold token id {int(batch.tokens.max())}, the model's vocab_size is "
                f"{model.source.config.vocab_size}; they were made with another tokenizer"
            )
        total += model.decoder(batch.to(model.device)).sum(dtype=torch.float64).item()
        counted += int((batch.labels != IGNORED_LABEL).sum())
        done = min(done + rows, len(held_out))
        if on_progress is not None:
            on_progress(done, len(held_out))
    loss = total / counted
    return Evaluation(
        loss=loss,
        perplexity=math.exp(loss) if loss < 700 else math.inf,
        bits_per_byte=total / math.log(2) / text_bytes if text_bytes else None,
        tokens=counted,
        documents=sum(map(len, stores)),
        text_bytes=text_bytes,
        sequence_length=length,
        stride=stride or length,
    )


def read_stores(
    paths: Sequence[str], text_key: str, encoder: HuggingFaceEncoder
) -> tuple[list[TokenStore], int | None]:
    """The documents of all paths, and the UTF-8 bytes of their text that is predicted; None if some have no text."""
    files = [file for path in paths for file in resolve(path)]
    stores = [open_indexed(file.path) for file in files if file.format == "indexed"]
    texts = [file for file in files if file.format != "indexed"]
    if not texts:
        return stores, None
    store, text_bytes = _tokenized(texts, text_key, encoder)
    return [*stores, store], None if stores else text_bytes


def _tokenized(files: Sequence[SourceFile], text_key: str, encoder: HuggingFaceEncoder) -> tuple[TokenStore, int]:
    ids, lengths, ends, text_bytes = [], [], [], 0
    for block in blocks(files):
        for pieces in batches(read_block(block, text_key)):
            chunk = encode_pieces(pieces, encoder)
            ids.append(chunk.ids)
            lengths.append(chunk.lengths)
            ends.append(chunk.ends)
            text_bytes += chunk.text_bytes
            text_bytes -= sum(encoder.unscored_bytes(piece.text) for piece in pieces if piece.starts)
    if not ids:
        raise UserError(f"{', '.join(str(file.path) for file in files)}: not one document with text in it")
    totals = np.cumsum(np.concatenate(lengths))[np.concatenate(ends)]
    return TokenStore.from_bounds("text", np.concatenate(ids), np.concatenate([[0], totals])), text_bytes
