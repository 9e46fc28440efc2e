"""The safetensors file format: a header of names, dtypes, shapes and byte ranges, then the tensors' bytes.

A file is 8 bytes of little-endian header length, that many bytes of JSON, and the data, without holes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from loong_core.errors import Fault
from loong_core.json_text import parse_json

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""Names of dtypes in headers."""


@dataclass(frozen=True)
class FolderKind:
    """Whose convention a model's folder follows.

    Attributes:
        stem: what its files of weights are called before `.safetensors`.
        for_transformers: whether `config.json` tells a dtype and a generation config stands beside it.
        pattern: of its files of weights, where there is no index.
    """

    stem: str
    for_transformers: bool
    pattern: str = "*.safetensors"

    @property
    def index(self) -> str:
        """The file that places tensors in files, where there are several."""
        return f"{self.stem}.safetensors.index.json"

    def file(self, number: int = 1, count: int = 1) -> str:
        """A file of weights."""
        return f"{self.stem}.safetensors" if count == 1 else f"{self.stem}-{number:05}-of-{count:05}.safetensors"


TRANSFORMERS = FolderKind("model", for_transformers=True)
DIFFUSERS = FolderKind("diffusion_pytorch_model", for_transformers=False)
LEROBOT = FolderKind("model", for_transformers=False, pattern="model*.safetensors")
"""A policy's folder, in which processors keep tensors of their own."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as its file's header describes it.

    Attributes:
        file: where it is.
        dtype: its dtype's name in the header (see `DTYPES`).
        shape: its shape.
        begin: first byte in the file.
        end: byte after its last.
    """

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def torch_dtype(self) -> torch.dtype:
        """Its dtype."""
        return DTYPES[self.dtype]

    @property
    def element_size(self) -> int:
        """Bytes of a number."""
        return self.torch_dtype.itemsize


def read_header(file: Path) -> tuple[dict[str, StoredTensor], list[Fault]]:
    """The tensors of a file by name, and what is wrong with it; the data is not read."""
    where = str(file)
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER_BYTES):
            return {}, [Fault(where, f"its {size} bytes end within the header", _COPY_AGAIN)]
        try:
            header = parse_json(stream.read(length))
            header.pop("__metadata__", None)
            found = {name: _stored(file, entry, 8 + length) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return {}, [Fault(where, f"its header is not one of safetensors: {error}", _COPY_AGAIN)]
    faults = [
        Fault(where, f"{name}: {stored.end - stored.begin} bytes for {stored.dtype} {list(stored.shape)}", _COPY_AGAIN)
        for name, stored in found.items()
        if stored.dtype in DTYPES and stored.end - stored.begin != prod(stored.shape) * DTYPES[stored.dtype].itemsize
    ]
    reached = 8 + length
    for name, stored in sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)):
        if stored.begin != reached:
            what = f"{name} begins at byte {stored.begin}, where the tensor before it ends at {reached}"
            faults.append(Fault(where, what, _COPY_AGAIN))
            break
        reached = stored.end
    promised = max((stored.end for stored in found.values()), default=8 + length)
    if size != promised:
        what = "truncated" if size < promised else "longer than it says"
        lost = [name for name, stored in found.items() if stored.end > size]
        first = f", from {lost[0]} on" if lost else ""
        faults.append(Fault(where, f"{what}: {size} bytes where its header promises {promised}{first}", _COPY_AGAIN))
    return found, faults


def header_bytes(tensors: dict[str, tuple[tuple[int, ...], torch.dtype]]) -> bytes:
    """Header of a file that holds `tensors` (shape and dtype by name) in this order, with its length in front."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begin = 0
    for name, (shape, dtype) in tensors.items():
        end = begin + prod(shape) * dtype.itemsize
        entries[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def data_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the host, in row-major order, without a copy where it is laid out so."""
    return memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


_COPY_AGAIN = "copy or download the file again"


def _stored(file: Path, entry: dict, data_start: int) -> StoredTensor:
    begin, end = entry["data_offsets"]
    return StoredTensor(
        file, str(entry["dtype"]), tuple(map(int, entry["shape"])), data_start + begin, data_start + end
    )
