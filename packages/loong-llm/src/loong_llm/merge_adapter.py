"""A model and an adapter of PEFT's written as one Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

from loong_core.checkpoint.hf_export import export_hf
from loong_core.checkpoint.hf_format import DTYPES
from loong_core.checkpoint.hf_writer import DEFAULT_SHARD_SIZE, FolderWriter
from loong_core.checkpoint.pieces import StatePiece
from loong_core.errors import UserError
from loong_core.nn.decoder import Decoder
from loong_core.nn.lora import merge_lora
from loong_core.parallel.context import ParallelContext
from loong_llm.adapter import base_model_of, is_adapter, load_adapter
from loong_llm.convert import DTYPE_OF_NAME
from loong_llm.model import ModelSource, build_stages, open_model, tokenizer_of


def merge_adapter(
    model: Path | None,
    adapter: Path,
    output: Path,
    *,
    dtype: str = "keep",
    max_shard_size: int = DEFAULT_SHARD_SIZE,
    replace: bool = False,
) -> None:
    """Add an adapter to its model, in float32, and write the sum. The whole model is in memory meanwhile.

    Args:
        model: the base model's folder; None: the one that the adapter names.
        adapter: a folder of PEFT's.
        output: where the new folder is to appear.
        dtype: a name of `DTYPE_OF_NAME`, or `keep`: the base model's.
        max_shard_size: bytes of a file.
        replace: whether a folder at `output` gives way.

    Raises:
        UserError: no adapter or model there, one that fits not the other, or a taken place.
    """
    if not is_adapter(adapter):
        raise UserError(f"{adapter} is no adapter: it has no adapter_config.json")
    if dtype != "keep" and dtype not in DTYPE_OF_NAME:
        raise UserError(f"dtype {dtype!r} is not one of keep, {', '.join(DTYPE_OF_NAME)}")
    if FolderWriter(output, replace=replace).taken and not replace:
        raise UserError(f"{output} exists and is not empty: choose another folder, or give --overwrite to replace it")
    source = open_model((model or base_model_of(adapter)).absolute())
    if source.weights is None:
        raise UserError(f"{source.name} has a config but no weights to add the adapter to")
    context = ParallelContext.single()
    (decoder,) = build_stages(source, context, dtype=torch.float32, initialise="weights")
    load_adapter(adapter, [decoder], source.weight_map, source.config.num_layers, context)
    merge_lora([decoder])
    kept = DTYPES[next(iter(source.weights.tensors.values())).dtype]
    export_hf(
        output,
        source.hf_config,
        _pieces(decoder, source, context),
        context,
        kept if dtype == "keep" else DTYPE_OF_NAME[dtype],
        tokenizer_dir=tokenizer_of(adapter),
        companions=source.weights.path,
        max_shard_size=max_shard_size,
        replace=replace,
    )


def _pieces(decoder: Decoder, source: ModelSource, context: ParallelContext) -> Iterator[StatePiece]:
    for parameter, placement in source.weight_map.placements(decoder, context):
        for piece, part in zip(placement.pieces, placement.from_local(parameter.detach()), strict=True):
            yield StatePiece("weight", piece, part)
