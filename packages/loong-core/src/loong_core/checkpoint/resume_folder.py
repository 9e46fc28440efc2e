"""The files of one resume checkpoint.

A checkpoint is a folder: `rank-N.safetensors` with the boxes of canonical tensors that rank N held, `index.json` with
where each box lies, and `manifest.json` with the step, every file's size and hash, and the run's own state. Nothing in
it is executed on reading. Since boxes are canonical, any layout reads what it needs of it, by memory map.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

from loong_core.checkpoint.hf_format import DTYPES, data_bytes, header_bytes
from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.errors import UserError
from loong_core.json_text import parse_json

MANIFEST = "manifest.json"
INDEX = "index.json"
FORMAT = "loong-resume-1"
_CHUNK = 1 << 24

_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class StoredBox:
    """One box of a tensor: its file, the byte in it where its values begin, and its place in the whole tensor."""

    file: str
    begin: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


@dataclass
class StoredTensor:
    """A whole tensor: shape, dtype by its name in safetensors, and the boxes that make it up."""

    shape: tuple[int, ...]
    dtype: str
    boxes: list[StoredBox] = field(default_factory=list)


@dataclass
class WrittenFile:
    """A file that is durable.

    Attributes:
        name: within the checkpoint's folder.
        size: bytes.
        hash: xxh3-128 of its content, hexadecimal.
        tensors: what it holds, by key.
    """

    name: str
    size: int
    hash: str
    tensors: dict[str, StoredTensor] = field(default_factory=dict)


class _HashedFile:
    """A file being written, hashed on the way."""

    def __init__(self, path: Path) -> None:
        self.stream = path.open("wb")
        self.hash = xxhash.xxh3_128()
        self.size = 0

    def write(self, data: bytes | memoryview) -> None:
        for start in range(0, len(data), _CHUNK):
            chunk = data[start : start + _CHUNK]
            self.stream.write(chunk)
            self.hash.update(chunk)
        self.size += len(data)

    def close_durably(self) -> None:
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()


def write_pieces(path: Path, pieces: Iterable[StatePiece], between: Callable[[], None] = lambda: None) -> WrittenFile:
    """Write boxes to a safetensors file and flush it to the disk.

    Args:
        path: the file.
        pieces: with tensors on the host.
        between: called before each tensor, as a test's means to interrupt.
    """
    named = {_name_in_file(piece): piece for piece in pieces}
    tensors = {name: piece.tensor for name, piece in named.items() if piece.tensor is not None}
    header = header_bytes({name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()})
    file = _HashedFile(path)
    try:
        file.write(header)
        written = WrittenFile(path.name, 0, "")
        for name, tensor in tensors.items():
            between()
            piece = named[name].piece
            stored = written.tensors.setdefault(
                named[name].key, StoredTensor(piece.global_shape, _DTYPE_NAMES[tensor.dtype])
            )
            stored.boxes.append(StoredBox(path.name, file.size, piece.offsets, piece.sizes))
            file.write(data_bytes(tensor))
        file.close_durably()
    finally:
        file.stream.close()
    written.size, written.hash = file.size, file.hash.hexdigest()
    return written


def _name_in_file(piece: StatePiece) -> str:
    """The key, and for a part of a tensor which part: `weight/model.norm.weight[0:64]`."""
    if piece.piece.is_whole:
        return piece.key
    ranges = zip(piece.piece.offsets, piece.piece.sizes, strict=True)
    return f"{piece.key}[{','.join(f'{start}:{start + size}' for start, size in ranges)}]"


def write_json(path: Path, value: Any) -> WrittenFile:
    """Write a JSON file and flush it to the disk."""
    file = _HashedFile(path)
    try:
        file.write(json.dumps(value, indent=1).encode())
        file.close_durably()
    finally:
        file.stream.close()
    return WrittenFile(path.name, file.size, file.hash.hexdigest())


def write_index(folder: Path, files: Iterable[WrittenFile]) -> WrittenFile:
    """Merge what each file holds into `index.json`."""
    merged: dict[str, StoredTensor] = {}
    for file in files:
        for key, stored in file.tensors.items():
            merged.setdefault(key, StoredTensor(stored.shape, stored.dtype)).boxes.extend(stored.boxes)
    return write_json(folder / INDEX, {key: asdict(stored) for key, stored in merged.items()})


_MANIFEST_KEYS = frozenset({"format", "step", "updates", "world_size", "extra", "files", "hash"})


def write_manifest(folder: Path, values: dict[str, Any]) -> None:
    """Write `manifest.json` with a hash of what it says."""
    write_json(folder / MANIFEST, values | {"hash": _manifest_hash(values)})


def _manifest_hash(values: dict[str, Any]) -> str:
    said = {key: value for key, value in values.items() if key != "hash"}
    return xxhash.xxh3_128(json.dumps(said, sort_keys=True).encode()).hexdigest()


class ResumeFolder:
    """A published checkpoint, open for reading.

    Args:
        path: its folder.

    Raises:
        UserError: it is not there, or is no complete checkpoint.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.manifest: dict[str, Any] = parse_json((path / MANIFEST).read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            what = f"has no {MANIFEST}, so it was never published" if path.is_dir() else "does not exist"
            raise UserError(f"checkpoint {path} {what}{_instead_of(path)}") from None
        except (OSError, ValueError) as error:
            raise UserError(f"checkpoint {path}: {MANIFEST} is damaged ({error}){_instead_of(path)}") from None
        missing = sorted(_MANIFEST_KEYS - set(self.manifest if isinstance(self.manifest, dict) else ()))
        if missing:
            raise UserError(
                f"checkpoint {path}: {MANIFEST} is damaged (without {', '.join(missing)}){_instead_of(path)}"
            )
        if self.manifest["format"] != FORMAT:
            raise UserError(
                f"checkpoint {path}: format {self.manifest['format']!r} is not {FORMAT!r}, which this version "
                "reads; resume with the version that wrote it"
            )
        if self.manifest["hash"] != _manifest_hash(self.manifest):
            raise UserError(f"checkpoint {path}: {MANIFEST} is not what was written there{_instead_of(path)}")
        self._maps: dict[str, Tensor] = {}

    @property
    def step(self) -> int:
        """The step after which it was saved."""
        return self.manifest["step"]

    @property
    def files(self) -> list[str]:
        """Names of all files but the manifest, in order."""
        return sorted(self.manifest["files"])

    def check_file(self, name: str, *, content: bool = True) -> str | None:
        """What is wrong with a file (missing, truncated, changed), or None.

        Args:
            name: one of `files`.
            content: whether to read it and compare its hash, not only its size.
        """
        path, recorded = self.path / name, self.manifest["files"][name]
        if not path.exists():
            return f"{path} is missing ({recorded['size']} bytes)"
        size = path.stat().st_size
        if size != recorded["size"]:
            what = "truncated" if size < recorded["size"] else "too long"
            return f"{path} is {what}: {size} bytes found, {recorded['size']} expected"
        if content:
            digest = xxhash.xxh3_128()
            with path.open("rb") as stream:
                while chunk := stream.read(_CHUNK):
                    digest.update(chunk)
            if digest.hexdigest() != recorded["hash"]:
                return (
                    f"{path} is damaged: its {size} bytes have hash {digest.hexdigest()}, {recorded['hash']} expected"
                )
        return None

    def refuse(self, findings: list[str]) -> UserError:
        """The error for damaged files, with the way out."""
        count = f"{len(findings)} fault" + ("s" if len(findings) > 1 else "")
        lines = "".join(f"\n  - {finding}" for finding in findings[:10])
        return UserError(f"checkpoint {self.path} cannot be used, {count}:{lines}{_instead_of(self.path)}")

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """Every tensor by key (`kind/name`)."""
        return {
            key: StoredTensor(
                tuple(entry["shape"]),
                entry["dtype"],
                [
                    StoredBox(box["file"], box["begin"], tuple(box["offsets"]), tuple(box["sizes"]))
                    for box in entry["boxes"]
                ],
            )
            for key, entry in parse_json((self.path / INDEX).read_text()).items()
        }

    def check_piece(self, wanted: StatePiece) -> str | None:
        """Why a piece cannot be read (not there, of another shape, incomplete), or None; reads no values."""
        stored, shape = self.tensors.get(wanted.key), wanted.piece.global_shape
        if stored is None:
            return f"{wanted.key} {list(shape)} is not in the checkpoint"
        if stored.shape != shape:
            return f"{wanted.key} is {list(stored.shape)} in the checkpoint, {list(shape)} in the model"
        covered = sum(int(np.prod(overlap[1])) for box in stored.boxes if (overlap := _overlap(box, wanted.piece)))
        needed = int(np.prod(wanted.piece.sizes))
        return None if covered >= needed else f"{wanted.key}: {covered} of {needed} elements are in the checkpoint"

    def read(self, wanted: StatePiece) -> Tensor:
        """Values of a piece that `check_piece` found no fault with, in new memory (or the map, if in one box)."""
        stored = self.tensors[wanted.key]
        piece = wanted.piece
        values: Tensor | None = None
        for box in stored.boxes:
            overlap = _overlap(box, piece)
            if overlap is None:
                continue
            start, sizes = overlap
            inside_box = tuple(slice(a - o, a - o + n) for a, o, n in zip(start, box.offsets, sizes, strict=True))
            part = self._box(box, stored.dtype)[inside_box]
            if sizes == piece.sizes:
                return part
            if values is None:
                values = torch.empty(piece.sizes, dtype=part.dtype)
            values[tuple(slice(a - o, a - o + n) for a, o, n in zip(start, piece.offsets, sizes, strict=True))] = part
        assert values is not None, wanted.key
        return values

    def _box(self, box: StoredBox, dtype_name: str) -> Tensor:
        """A box as a view of its mapped file."""
        if box.file not in self._maps:
            # Mapped copy-on-write, as torch warns of memory that it may not write.
            self._maps[box.file] = torch.from_numpy(np.memmap(self.path / box.file, dtype=np.uint8, mode="c"))
        dtype = DTYPES[dtype_name]
        end = box.begin + int(np.prod(box.sizes)) * dtype.itemsize
        flat = self._maps[box.file][box.begin : end]
        aligned = flat if box.begin % dtype.itemsize == 0 else flat.clone()
        return aligned.view(dtype).view(box.sizes)


def _overlap(box: StoredBox, piece: Piece) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """First indices and extents of what a box and a piece have in common, in the whole tensor; None if nothing."""
    start = tuple(max(a, b) for a, b in zip(box.offsets, piece.offsets, strict=True))
    stop = tuple(
        min(a + n, b + m) for a, n, b, m in zip(box.offsets, box.sizes, piece.offsets, piece.sizes, strict=True)
    )
    sizes = tuple(b - a for a, b in zip(start, stop, strict=True))
    return (start, sizes) if all(size > 0 for size in sizes) else None


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is published."""
    return folder / f"step-{step:08d}"


def published(folder: Path) -> list[Path]:
    """The published checkpoints below a folder, oldest first. What has no manifest is none."""
    steps = (path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit())
    return sorted(path for path in steps if (path / MANIFEST).is_file())


def _instead_of(path: Path) -> str:
    """Which other checkpoint to use, as the end of a message."""
    others = [other for other in published(path.parent) if other != path]
    before = [other for other in others if other < path] or others
    if not before:
        return f"; there is no other checkpoint in {path.parent}"
    return f"; the one before is {before[-1]}: move {path.name} out of {path.parent} to resume from it"
