"""Names and shapes of a folder's tensors, from the headers of its files; imports no torch."""

from __future__ import annotations

import json
from pathlib import Path

from loong_core.errors import UserError

_MAX_HEADER_BYTES = 100_000_000


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shape by name of every tensor in a folder's safetensors files.

    Raises:
        UserError: a file's header cannot be read.
    """
    found: dict[str, tuple[int, ...]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(min(length, _MAX_HEADER_BYTES)))
            found |= {name: tuple(each["shape"]) for name, each in header.items() if name != "__metadata__"}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is not a safetensors file, or is cut short: {error}") from error
    return found
