"""Reading a Hugging Face model folder: headers first, then only the bytes that are wanted.

Opening a folder reads `config.json` and the safetensors headers. `read` gives one box of one tensor: straight where
its bytes lie together, else out of a map of the file, so host memory never holds more than a rank asked for.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from loong_core.checkpoint.hf_format import TRANSFORMERS, FolderKind, StoredTensor, read_header
from loong_core.checkpoint.pieces import Piece
from loong_core.errors import Fault, UserError
from loong_core.json_text import read_json_object

_SHOWN_FAULTS = 40
_PICKLES = ("*.bin", "*.pt", "*.pth")
_LOADABLE = ("BF16", "F16", "F32", "F64")
_OTHER_MODEL = "is config.json of this model?"


class WeightsError(UserError):
    """A folder's weights cannot be used: every fault found, together.

    Attributes:
        faults: file, tensor and numbers of each.
    """

    def __init__(self, folder: Path, faults: list[Fault]) -> None:
        self.faults = faults
        shown = [f"  - {fault}" for fault in faults[:_SHOWN_FAULTS]]
        if len(faults) > _SHOWN_FAULTS:
            shown.append(f"  - and {len(faults) - _SHOWN_FAULTS} more")
        count = f"{len(faults)} fault" + ("s" if len(faults) != 1 else "")
        super().__init__(f"{count} in the weights of {folder}:\n" + "\n".join(shown))


class HFFolder:
    """A folder with `config.json` and, perhaps, safetensors files.

    Args:
        path: the folder.
        kind: whose convention it follows.

    Raises:
        UserError: if the folder or its `config.json` is not there or not readable.
    """

    def __init__(self, path: Path | str, kind: FolderKind = TRANSFORMERS) -> None:
        self.path = Path(path)
        self.kind = kind
        if not self.path.is_dir():
            raise UserError(f"{self.path} is not a folder")
        self.config = read_json_object(self.path / "config.json")

    @property
    def has_weights(self) -> bool:
        """Whether there are files of weights or an index of some; also of kinds that are not read."""
        patterns = (self.kind.index, self.kind.pattern, *_PICKLES)
        return any(True for pattern in patterns for _ in self.path.glob(pattern))

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        """Every stored tensor by name.

        Raises:
            WeightsError: if files are missing, truncated, or at odds with the index.
            UserError: if there are no safetensors files.
        """
        found, faults = self._headers
        if faults:
            raise WeightsError(self.path, faults)
        return found

    def check(
        self,
        expected: Mapping[str, tuple[int, ...]],
        *,
        optional: Mapping[str, tuple[int, ...]] | None = None,
        harmless: Iterable[str] = (),
    ) -> None:
        """Compare the stored tensors with a model's.

        Args:
            expected: shape by name of those that must be there.
            optional: of those that may be.
            harmless: patterns of further names that may be there, in any shape.

        Raises:
            WeightsError: with every missing, extra and wrong-shaped tensor, and every faulty file.
        """
        stored, file_faults = self._headers
        known = {**expected, **(optional or {})}
        patterns = [re.compile(pattern) for pattern in harmless]
        faults = list(file_faults)
        for name in expected.keys() - stored.keys():
            faults.append(Fault(str(self.path), f"{name} {list(expected[name])} is missing", _OTHER_MODEL))
        for name, tensor in stored.items():
            shape, what = known.get(name), None
            if shape is None:
                if not any(pattern.fullmatch(name) for pattern in patterns):
                    what = f"{name} {list(tensor.shape)} is not a tensor of the model that config.json describes"
            elif tensor.shape != shape:
                what = f"{name} is {list(tensor.shape)}, by config.json it is {list(shape)}"
            elif tensor.dtype not in _LOADABLE:
                what = f"{name} is stored as {tensor.dtype}; {', '.join(_LOADABLE)} are read"
            if what:
                faults.append(Fault(str(tensor.file), what, _OTHER_MODEL))
        if faults:
            raise WeightsError(self.path, sorted(faults, key=str))

    def read(self, piece: Piece) -> Tensor:
        """The values of one box of a stored tensor, in its stored dtype, on the host.

        Raises:
            KeyError: if no tensor has the piece's name.
        """
        values = torch.empty(piece.sizes, dtype=self.tensors[piece.name].torch_dtype)
        self.read_into(piece, values)
        return values

    def read_into(self, piece: Piece, out: Tensor) -> None:
        """As `read`, into a contiguous tensor of the stored dtype and the piece's sizes, on the host.

        May be called by several threads at once.
        """
        if 0 in piece.sizes:
            return
        stored = self.tensors[piece.name]
        first = _run_in_file(piece)
        if first is None:
            out.copy_(self._mapped_box(piece))
            return
        target = memoryview(out.detach().view(-1).view(torch.uint8).numpy())
        position = stored.begin + first * stored.element_size
        with stored.file.open("rb", buffering=0) as file:
            done = 0
            while done < len(target):
                count = os.preadv(file.fileno(), [target[done:]], position + done)
                if not count:
                    what = f"ends at byte {position + done}, within {piece.name}; it was longer when it was opened"
                    raise WeightsError(self.path, [Fault(str(stored.file), what, "copy or download the file again")])
                done += count

    def _mapped_box(self, piece: Piece) -> Tensor:
        """A view of the file, which only touches the pages that are looked at. Not to be written."""
        stored = self.tensors[piece.name]
        numbers = np.memmap(stored.file, np.uint8, "r")[stored.begin : stored.end].view(f"u{stored.element_size}")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(numbers.reshape(stored.shape)[piece.slices]).view(stored.torch_dtype)

    def not_finite(self, piece: Piece, values: Tensor) -> Fault | None:
        """A fault that counts the NaN and Inf among values read, or None if there are none."""
        if all_finite(values):
            return None
        nan, inf = int(torch.isnan(values).sum()), int(torch.isinf(values).sum())
        where = "" if piece.is_whole else f" in {piece.sizes} at {piece.offsets}"
        what = f"{piece.name}{where} has {nan} NaN and {inf} Inf among {values.numel()} numbers"
        return Fault(str(self.tensors[piece.name].file), what, "take another copy of the checkpoint")

    @cached_property
    def _headers(self) -> tuple[dict[str, StoredTensor], list[Fault]]:
        """Every stored tensor, and every fault of the files."""
        index = self.path / self.kind.index
        indexed: dict[str, str] = read_json_object(index).get("weight_map", {}) if index.is_file() else {}
        plain = isinstance(indexed, dict) and all(
            isinstance(name, str) and name.endswith(".safetensors") and Path(name).name == name
            for name in indexed.values()
        )
        if not plain:
            what = "its weight_map is not a mapping of tensor names to safetensors files beside it"
            raise UserError(f"{index}: {what}; copy or download the file again")
        files = sorted(self.path / name for name in set(indexed.values())) or sorted(self.path.glob(self.kind.pattern))
        if not files:
            raise UserError(_no_weights(self.path))
        found: dict[str, StoredTensor] = {}
        faults: list[Fault] = []
        for file in files:
            if not file.is_file():
                count = sum(name == file.name for name in indexed.values())
                faults.append(Fault(str(file), f"is missing; {self.kind.index} places {count} tensors in it"))
                continue
            here, wrong = read_header(file)
            faults += wrong
            faults += [
                Fault(str(file), f"{name} is also in {found[name].file.name}", "keep one of them")
                for name in here.keys() & found.keys()
            ]
            if not wrong:
                faults += [
                    Fault(str(file), f"{name} is not in it, though {self.kind.index} places it there")
                    for name, place in indexed.items()
                    if place == file.name and name not in here
                ]
            found |= here
        return found, faults


def _no_weights(folder: Path) -> str:
    pickled = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickled:
        return (
            f"{folder} has its weights in {pickled[0]}, a pickle, which can run code when opened and is not read; "
            "convert it to safetensors on a machine where you trust it (transformers: "
            "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OTHER_DIR))"
        )
    return f"{folder} has no .safetensors file"


def _run_in_file(piece: Piece) -> int | None:
    """The number of elements before a box whose own lie together; None where they do not."""
    first, stride, within = 0, 1, True
    for extent, offset, size in reversed(list(zip(piece.global_shape, piece.offsets, piece.sizes, strict=True))):
        if not within and size > 1:
            return None
        within = within and size == extent
        first += offset * stride
        stride *= extent
    return first


def all_finite(values: Tensor) -> bool:
    """Whether no element is NaN or Inf; by the extremes, which either would be, in one pass that only reads."""
    if not values.is_floating_point() or values.numel() == 0:
        return True
    wide = values.float() if values.dtype.itemsize == 1 else values
    return all(bool(torch.isfinite(extreme)) for extreme in torch.aminmax(wide))
