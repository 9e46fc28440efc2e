"""A model written as a Hugging Face folder, in another dtype or in other files, one tensor in memory at a time.

The source is a Hugging Face folder, a run's folder or one of its checkpoints, or a checkpoint of Megatron's.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from loong_core.checkpoint.hf_writer import DEFAULT_SHARD_SIZE, DTYPE_NAMES, FolderWriter, Shard, plan_shards
from loong_core.errors import UserError
from loong_llm.convert_source import ConvertSource, OpenModel, open_source
from loong_llm.convert_vocabulary import VocabularyResize, resized
from loong_llm.model import open_model as open_language_model

DTYPE_OF_NAME = {name: dtype for dtype, name in DTYPE_NAMES.items()} | {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}
"""Dtypes by what a user may call them."""


@dataclass(frozen=True)
class Converted:
    """What was written.

    Attributes:
        folder: where.
        tensors: how many.
        size: their bytes.
        files: how many safetensors files.
        left_out: tensors of the source that the model does not use.
    """

    folder: Path
    tensors: int
    size: int
    files: int
    left_out: tuple[str, ...]


def convert(
    source: Path | str,
    output: Path | str,
    *,
    step: int | None = None,
    dtype: str = "keep",
    max_shard_size: int = DEFAULT_SHARD_SIZE,
    replace: bool = False,
    vocabulary: VocabularyResize | None = None,
    on_tensor: Callable[[str], None] | None = None,
    open_model: OpenModel = open_language_model,
    described_by: str | None = None,
) -> Converted:
    """Write a Hugging Face folder.

    Args:
        source: a Hugging Face folder with safetensors, a run's `output` or a checkpoint within one, or a checkpoint of
            Megatron's (`torch_dist`).
        output: where the new folder is to appear.
        step: which checkpoint of a run, or of Megatron's; the last by default.
        dtype: a name of `DTYPE_OF_NAME`, or `keep`: each tensor's own, of a run's checkpoint that of its precision.
        max_shard_size: bytes of a file.
        replace: whether a folder at `output` gives way.
        vocabulary: another size of the vocabulary's tables.
        on_tensor: called with each tensor's name before it is written.
        open_model: what finds the model of a folder or a run; by default a language model.
        described_by: of a checkpoint of Megatron's: the named size or Hugging Face folder whose config describes it.

    Raises:
        UserError: if the source is no model or its weights are faulty (all faults told at once), if the dtype cannot
            hold a number, or if the place is taken.
    """
    if dtype != "keep" and dtype not in DTYPE_OF_NAME:
        raise UserError(f"dtype {dtype!r} is not one of keep, {', '.join(DTYPE_OF_NAME)}")
    writer = FolderWriter(output, replace=replace)
    if writer.taken and not replace:
        raise UserError(f"{output} exists and is not empty: choose another folder, or give --overwrite to replace it")
    opened = open_source(Path(source), step, open_model, described_by)
    if vocabulary is not None:
        opened = resized(opened, vocabulary)
    dtypes = opened.dtypes if dtype == "keep" else dict.fromkeys(opened.dtypes, DTYPE_OF_NAME[dtype])
    shards = plan_shards({name: (shape, dtypes[name]) for name, shape in opened.shapes.items()}, max_shard_size)

    def values(name: str) -> Tensor:
        if on_tensor is not None:
            on_tensor(name)
        return _cast(name, opened.read(name), dtypes[name])

    writer.begin()
    try:
        for shard in shards:
            writer.write_shard(shard, values)
        _publish(writer, opened, shards)
    except BaseException:
        writer.discard()
        raise
    size = sum(shard.data_size for shard in shards)
    return Converted(writer.folder, len(opened.shapes), size, len(shards), opened.left_out)


def _publish(writer: FolderWriter, opened: ConvertSource, shards: list[Shard]) -> None:
    with ExitStack() as stack:
        tokenizer = None
        if opened.tokenizer is not None:
            tokenizer = Path(stack.enter_context(TemporaryDirectory()))
            opened.tokenizer(tokenizer)
        writer.publish(shards, opened.hf_config, opened.companions, tokenizer)


def _cast(name: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """The values in another dtype, unless some are beyond its range."""
    cast = values.to(dtype)
    if dtype != values.dtype and (lost := int(torch.isinf(cast).sum())):
        raise UserError(
            f"{lost} numbers of {name} (the largest is {float(values.abs().max()):g}) are beyond {DTYPE_NAMES[dtype]}, "
            f"which ends at {torch.finfo(dtype).max:g}: choose bfloat16 or float32"
        )
    return cast
