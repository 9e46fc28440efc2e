"""A model folder opened to be used rather than trained: `generate` and `eval` share it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from loong_core.errors import UserError
from loong_core.nn.decoder import Decoder
from loong_core.nn.lora import merge_lora
from loong_core.parallel.context import ParallelContext
from loong_llm.adapter import base_model_of, is_adapter, load_adapter
from loong_llm.model import ModelSource, build_stages, open_model, tokenizer_of
from loong_llm.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class OpenedModel:
    """A whole decoder on one device, with its tokenizer.

    Attributes:
        source: where it is from.
        decoder: in evaluation mode, gradients off.
        tokenizer: the folder's, or the one asked for.
        device: where the weights are.
        max_length: the longest sequence it is made for, None if its config does not say.
    """

    source: ModelSource
    decoder: Decoder
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    max_length: int | None


def open_for_inference(
    folder: str | Path,
    device: torch.device,
    *,
    dtype: torch.dtype = torch.float32,
    tokenizer: str | None = None,
    adapter: str | Path | None = None,
) -> OpenedModel:
    """Open a Hugging Face folder, or an adapter's folder and the model that it names.

    Args:
        folder: `config.json`, safetensors, and the tokenizer unless one is named; or a folder of PEFT's.
        device: where to put the weights.
        dtype: to compute in.
        tokenizer: `bytes` or another folder; None: the adapter's if it has one, else the model's own.
        adapter: a folder of PEFT's to put on the model; None: none, unless `folder` is one.

    Raises:
        UserError: no folder, no weights, or faulty ones; no tokenizer, or one whose ids exceed the embedding.
    """
    if adapter is None and is_adapter(Path(folder)):
        folder, adapter = base_model_of(Path(folder)), folder
    source = open_model(folder)
    if source.weights is None:
        raise UserError(f"model {folder} has a config but no weights; train it first, or give a folder with weights")
    own = tokenizer_of(None if adapter is None else Path(adapter)) or source.tokenizer_dir
    text = load_tokenizer(tokenizer, own)
    largest = max(text.get_vocab().values())
    if largest >= source.config.vocab_size:
        raise UserError(
            f"tokenizer {tokenizer or folder} has ids up to {largest}, the model's embedding has "
            f"{source.config.vocab_size} rows; use the tokenizer that the model was trained with"
        )
    (decoder,) = build_stages(source, ParallelContext.single(), dtype=dtype, initialise="weights")
    if adapter is not None:
        load_adapter(Path(adapter), [decoder], source.weight_map, source.config.num_layers, ParallelContext.single())
        merge_lora([decoder])
    decoder.to(device).eval().requires_grad_(False)
    longest = source.hf_config.get("max_position_embeddings")
    return OpenedModel(source, decoder, text, device, longest if isinstance(longest, int) else None)
