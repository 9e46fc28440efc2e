"""Reading a foreign checkpoint in torch's distributed format (DCP), which Megatron calls `torch_dist`.

Such a folder has `.metadata`, a pickle that places the boxes of each tensor in `.distcp` files, and in these every box
as `torch.save` writes a tensor. No code of the folder is run: the pickle may name the few classes of such metadata and
nothing else, and boxes are read by torch's loader of weights only.
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loong_core.checkpoint.pieces import Piece
from loong_core.errors import UserError

METADATA = ".metadata"

_METADATA_CLASSES = (
    "Metadata",
    "MetadataIndex",
    "ChunkStorageMetadata",
    "BytesStorageMetadata",
    "TensorStorageMetadata",
    "TensorProperties",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
)


@dataclass(frozen=True)
class DcpBox:
    """A box of a tensor, and where it is: `length` bytes of `file` from `begin` on."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: Path
    begin: int
    length: int


@dataclass(frozen=True)
class DcpTensor:
    """A whole tensor: its shape, its dtype, and the boxes that make it up."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    boxes: tuple[DcpBox, ...]


class DcpFolder:
    """A folder of torch's distributed checkpoints.

    Args:
        path: the folder, with `.metadata` in it.

    Attributes:
        tensors: every tensor by name; what is no tensor is left out.

    Raises:
        UserError: the metadata cannot be read or names what it may not, or files are missing or too short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        metadata = _read_metadata(path / METADATA)
        self.tensors: dict[str, DcpTensor] = {}
        try:
            for name, entry in metadata.state_dict_metadata.items():
                if hasattr(entry, "chunks"):
                    self.tensors[name] = self._tensor(name, entry, metadata.storage_data)
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{path / METADATA} is not a checkpoint's metadata: {error!r}; {_COPY_AGAIN}") from error
        self._check_files()

    @staticmethod
    def is_one(path: Path) -> bool:
        """Whether a folder looks like one."""
        return (path / METADATA).is_file() and any(True for _ in path.glob("*.distcp"))

    def read(self, piece: Piece) -> Tensor:
        """The values of one box of a tensor, in its stored dtype, on the host.

        Raises:
            KeyError: no tensor has the piece's name.
            UserError: what is stored does not cover the box, or a stored box is not what the metadata say.
        """
        tensor = self.tensors[piece.name]
        values = torch.empty(piece.sizes, dtype=tensor.dtype)
        found = 0
        for box in tensor.boxes:
            first = [max(a, b) for a, b in zip(box.offsets, piece.offsets, strict=True)]
            last = [
                min(a + m, b + n) for a, m, b, n in zip(box.offsets, box.sizes, piece.offsets, piece.sizes, strict=True)
            ]
            if any(low >= high for low, high in zip(first, last, strict=True)):
                continue
            part = self._box(piece.name, box, tensor.dtype)[_slices(first, last, box.offsets)]
            values[_slices(first, last, piece.offsets)] = part
            found += part.numel()
        if found != values.numel():
            raise UserError(
                f"{self.path} holds {found} of the {values.numel()} numbers of {piece.name} in {piece.sizes} at "
                f"{piece.offsets}; {_COPY_AGAIN}"
            )
        return values

    def _tensor(self, name: str, entry: Any, storage: dict[Any, Any]) -> DcpTensor:
        from torch.distributed.checkpoint.metadata import MetadataIndex

        boxes = []
        for chunk in entry.chunks:
            place = storage[MetadataIndex(name, chunk.offsets)]
            if getattr(place, "transform_descriptors", None):
                raise UserError(f"{self.path}: {name} is stored compressed, which is not read; save it without")
            if Path(place.relative_path).name != place.relative_path:
                raise UserError(f"{self.path}: {name} is placed in {place.relative_path!r}, outside the folder")
            file = self.path / place.relative_path
            boxes.append(DcpBox(tuple(chunk.offsets), tuple(chunk.sizes), file, int(place.offset), int(place.length)))
        return DcpTensor(tuple(entry.size), entry.properties.dtype, tuple(boxes))

    def _check_files(self) -> None:
        ends: dict[Path, int] = {}
        for tensor in self.tensors.values():
            for box in tensor.boxes:
                ends[box.file] = max(ends.get(box.file, 0), box.begin + box.length)
        faults = []
        for file, end in sorted(ends.items()):
            if not file.is_file():
                faults.append(f"{file.name} is missing")
            elif (size := file.stat().st_size) < end:
                faults.append(f"{file.name} is truncated: {size} bytes where {METADATA} promises {end}")
        if faults:
            raise UserError(f"{self.path}: {'; '.join(faults)}; {_COPY_AGAIN}")

    def _box(self, name: str, box: DcpBox, dtype: torch.dtype) -> Tensor:
        with box.file.open("rb", buffering=0) as stream:
            stream.seek(box.begin)
            content = stream.read(box.length)
        try:
            values = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
            where = f"{box.file}, bytes {box.begin} to {box.begin + box.length}"
            raise UserError(f"{where}: {name} cannot be read: {_first_line(error)}; {_COPY_AGAIN}") from error
        if not isinstance(values, Tensor) or tuple(values.shape) != box.sizes or values.dtype != dtype:
            raise UserError(f"{box.file}: {name} is not the {dtype} of {list(box.sizes)} that {METADATA} promises")
        return values.detach()


class _Inert:
    """In place of megatron-core's own notes in a checkpoint's metadata, which nothing here needs."""


class _MetadataUnpickler(pickle.Unpickler):
    """Reads what DCP's metadata are made of; any other name ends the reading before anything is called."""

    def find_class(self, module: str, name: str) -> Any:
        """The class of a name in the pickle.

        Raises:
            UnpicklingError: it is none of those that belong there.
        """
        from torch.distributed.checkpoint import filesystem
        from torch.distributed.checkpoint import metadata as dcp

        if module == "torch.distributed.checkpoint.metadata" and name in _METADATA_CLASSES:
            return getattr(dcp, name)
        if (module, name) == ("torch.distributed.checkpoint.filesystem", "_StorageInfo"):
            return filesystem._StorageInfo
        if (module, name) == ("torch.serialization", "_get_layout"):
            return _layout
        if module == "torch" and (name == "Size" or isinstance(getattr(torch, name, None), torch.dtype)):
            return getattr(torch, name)
        if module == "pathlib" and name in ("PosixPath", "PurePosixPath"):
            return Path
        if (module, name) == ("collections", "OrderedDict"):
            return dict
        if module == "megatron.core.dist_checkpointing.strategies.torch" and name.startswith("MCore"):
            return _Inert
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _layout(name: str) -> Any:
    return torch.strided if name == "torch.strided" else None


def _read_metadata(file: Path) -> Any:
    try:
        with file.open("rb") as stream:
            return _MetadataUnpickler(stream).load()
    except FileNotFoundError:
        raise UserError(f"{file} is missing: {file.parent} is no distributed checkpoint, or not a whole one") from None
    except Exception as error:  # a pickle that is no metadata may end in anything
        why = _first_line(error)
        raise UserError(f"{file} is refused: {why}, which no checkpoint's metadata do; {_COPY_AGAIN}") from error


def _slices(first: list[int], last: list[int], origin: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(first, last, origin, strict=True))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


_COPY_AGAIN = "copy or download the checkpoint again"
