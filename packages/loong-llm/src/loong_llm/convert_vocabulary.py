"""More or fewer rows of a model's vocabulary tables: embedding and, where it has one of its own, output projection."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor

from loong_core.errors import UserError
from loong_llm.convert_source import ConvertSource

NewRows = Literal["mean", "zero", "random", "mean_covariance"]
NEW_ROWS: tuple[NewRows, ...] = get_args(NewRows)


@dataclass(frozen=True)
class VocabularyResize:
    """How many rows the tables are to have, and what new ones are.

    Attributes:
        size: rows.
        new_rows: `mean` of the old rows; `zero`; `random`, normal with the config's `initializer_range`;
            `mean_covariance`, normal about the mean with `1e-9` of the old rows' covariance, as transformers'
            `resize_token_embeddings` draws them (Hewitt 2021: a mean bounds how much the softmax changes).
        seed: of the draws.
    """

    size: int
    new_rows: NewRows = "mean_covariance"
    seed: int = 0


def resized(source: ConvertSource, resize: VocabularyResize) -> ConvertSource:
    """The source with tables of another size.

    Raises:
        UserError: a size below 1, or an initialisation of another name.
    """
    if resize.new_rows not in NEW_ROWS:
        raise UserError(f"new rows can be {', '.join(NEW_ROWS)}, not {resize.new_rows!r}")
    if resize.size < 1:
        raise UserError(f"a vocabulary of {resize.size} rows; it needs at least 1")
    shapes = {
        name: (resize.size, *shape[1:]) if name in source.tables else shape for name, shape in source.shapes.items()
    }
    spread = float(source.hf_config.get("initializer_range", 0.02))

    def read(name: str) -> Tensor:
        values = source.read(name)
        return _rows(name, values, resize, spread) if name in source.tables else values

    return replace(source, hf_config={**source.hf_config, "vocab_size": resize.size}, shapes=shapes, read=read)


def _rows(name: str, old: Tensor, resize: VocabularyResize, spread: float) -> Tensor:
    """The first rows of a table, followed by new ones where it grows."""
    count = resize.size - old.shape[0]
    if count <= 0:
        return old[: resize.size].clone()
    wide = old.double()
    mean = wide.mean(0)
    digest = hashlib.sha256(f"{resize.seed}/{name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little", signed=True))
    drawn = torch.randn(count, old.shape[1], generator=generator, dtype=torch.float64)
    if resize.new_rows == "zero":
        fresh = torch.zeros_like(drawn)
    elif resize.new_rows == "mean":
        fresh = mean.expand(count, -1)
    elif resize.new_rows == "random":
        fresh = spread * drawn
    else:
        centred = wide - mean
        covariance = centred.T @ centred / old.shape[0]
        values, vectors = torch.linalg.eigh(1e-9 * covariance)
        fresh = mean + drawn * values.clamp(min=0).sqrt() @ vectors.T
    return torch.cat([old, fresh.to(old.dtype)])
