"""Writing a Hugging Face model folder: sharded safetensors, index, config, and what came with the model.

Everything goes into a hidden folder beside the wanted one, is flushed to disk, and appears under its name by a rename.
Tensors are asked for one at a time, so no more than one is held.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loong_core.checkpoint.hf_format import TRANSFORMERS, FolderKind, data_bytes, header_bytes
from loong_core.errors import UserError

DEFAULT_SHARD_SIZE = 5 * 10**9
"""Bytes of a file, unless told otherwise (transformers' default of before version 5, which every tool expects)."""

DTYPE_NAMES = {
    torch.float64: "float64",
    torch.float32: "float32",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
}
"""Names of dtypes in `config.json`."""

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")
"""Files that say how images and videos are read."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "*.tiktoken",
)
"""Files of a model folder that belong to its tokenizer."""

_GENERATION_FILE = "generation_config.json"


@dataclass(frozen=True)
class Shard:
    """One safetensors file to be.

    Attributes:
        file: its name.
        tensors: shape and dtype of each tensor in it, in order.
    """

    file: str
    tensors: dict[str, tuple[tuple[int, ...], torch.dtype]]

    @property
    def data_size(self) -> int:
        """Bytes of its tensors."""
        return sum(prod(shape) * dtype.itemsize for shape, dtype in self.tensors.values())


def plan_shards(
    tensors: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    max_shard_size: int = DEFAULT_SHARD_SIZE,
    kind: FolderKind = TRANSFORMERS,
) -> list[Shard]:
    """Divide tensors, in order, among files of at most `max_shard_size` bytes of data; a larger one is a file alone."""
    groups: list[dict[str, tuple[tuple[int, ...], torch.dtype]]] = [{}]
    held = 0
    for name, (shape, dtype) in tensors.items():
        size = prod(shape) * dtype.itemsize
        if groups[-1] and held + size > max_shard_size:
            groups.append({})
            held = 0
        groups[-1][name] = (shape, dtype)
        held += size
    return [Shard(kind.file(number, len(groups)), group) for number, group in enumerate(groups, 1)]


def parse_size(text: str | int) -> int:
    """Bytes of a size such as `5GB`, `500MB` or `2GiB`.

    Raises:
        UserError: if it is not one.
    """
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?\s*", text, re.IGNORECASE)
    if not match:
        raise UserError(f"{text!r} is not a size; write it as 500MB, 5GB or 2GiB")
    number, prefix, binary = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " "))


class FolderWriter:
    """A model folder in the making.

    Args:
        folder: where it is to appear.
        replace: whether a folder that is there gives way; else it must be absent or empty.
        kind: whose convention it follows.
    """

    def __init__(self, folder: Path | str, *, replace: bool = False, kind: FolderKind = TRANSFORMERS) -> None:
        self.kind = kind
        self.folder = Path(folder).absolute()
        self.partial = self.folder.with_name(f".{self.folder.name}.partial")
        self._replace = replace

    @property
    def taken(self) -> bool:
        """Whether something is at the folder's place: a file, or a folder that is not empty."""
        return self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir()))

    def begin(self) -> None:
        """Make the hidden folder, empty.

        Raises:
            UserError: if the place is taken.
        """
        if self.taken and not self._replace:
            raise UserError(f"{self.folder} exists and is not empty: choose another folder or remove it")
        shutil.rmtree(self.partial, ignore_errors=True)
        self.partial.mkdir(parents=True)

    def write_shard(self, shard: Shard, values: Callable[[str], Tensor]) -> None:
        """Write one file.

        Args:
            shard: what it holds.
            values: gives the whole tensor of a name, on any device; asked for each in turn.
        """
        with (self.partial / shard.file).open("wb") as stream:
            stream.write(header_bytes(shard.tensors))
            for name, (shape, dtype) in shard.tensors.items():
                tensor = values(name)
                if tuple(tensor.shape) != shape:
                    raise ValueError(f"{name} is {list(tensor.shape)}, planned as {list(shape)}")
                stream.write(data_bytes(tensor.to(dtype).cpu()))
            stream.flush()
            os.fsync(stream.fileno())

    def publish(
        self,
        shards: Sequence[Shard],
        hf_config: Mapping[str, Any],
        companions: Path | None = None,
        tokenizer: Path | None = None,
        beside: Path | None = None,
    ) -> None:
        """Add index, config and companions, and let the folder appear.

        Args:
            shards: all files, written by now.
            hf_config: `config.json`; its dtype is set to the tensors'.
            companions: a model folder whose generation config and tokenizer are copied, if any.
            tokenizer: a folder whose tokenizer is copied instead, if any.
            beside: a folder whose every file is copied, if any.
        """
        if len(shards) > 1:
            index = {
                "metadata": {"total_size": sum(shard.data_size for shard in shards)},
                "weight_map": {name: shard.file for shard in shards for name in shard.tensors},
            }
            _write_json(self.partial / self.kind.index, index)
        for file in sorted(beside.iterdir()) if beside is not None else []:
            shutil.copyfile(file, self.partial / file.name)
        if not self.kind.for_transformers:
            _write_json(self.partial / "config.json", hf_config)
            _sync(self.partial)
            self._appear()
            return
        _write_json(self.partial / "config.json", _with_dtype(hf_config, shards))
        ids = {key: hf_config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in hf_config}
        _write_json(self.partial / _GENERATION_FILE, ids)
        copied = [(companions, _GENERATION_FILE)]
        copied += [(companions, pattern) for pattern in PROCESSOR_FILES]
        copied += [(companions, "*.py")] if "auto_map" in hf_config else []
        copied += [(tokenizer or companions, pattern) for pattern in TOKENIZER_FILES]
        for source, pattern in copied:
            for file in sorted(source.glob(pattern)) if source is not None else []:
                shutil.copyfile(file, self.partial / file.name)
        _sync(self.partial)
        self._appear()

    def discard(self) -> None:
        """Remove the hidden folder."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def _appear(self) -> None:
        """Rename the hidden folder; one that is there is put aside first and removed after."""
        old = self.folder.with_name(f".{self.folder.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        if self.folder.exists():
            self.folder.rename(old)
        self.partial.rename(self.folder)
        _sync(self.folder.parent)
        shutil.rmtree(old, ignore_errors=True)


def _with_dtype(hf_config: Mapping[str, Any], shards: Sequence[Shard]) -> dict[str, Any]:
    """The config with the dtype of the (first) tensors, under whichever of its two names the config uses."""
    dtype = next(dtype for shard in shards for _, dtype in shard.tensors.values())
    keys = [key for key in ("dtype", "torch_dtype") if key in hf_config] or ["torch_dtype"]
    return {**hf_config, **dict.fromkeys(keys, DTYPE_NAMES[dtype])}


def _write_json(file: Path, value: Mapping[str, Any]) -> None:
    with file.open("w", encoding="utf-8") as stream:
        stream.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        stream.flush()
        os.fsync(stream.fileno())


def _sync(folder: Path) -> None:
    """Make the folder's entries durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
