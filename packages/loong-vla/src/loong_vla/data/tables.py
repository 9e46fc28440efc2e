"""The numbers of a dataset (states, actions, tasks), in memory; pictures stay in their files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as arrow
import pyarrow.parquet as parquet
from numpy.typing import NDArray
from PIL import Image

from loong_core.errors import UserError
from loong_vla.data.metadata import Metadata

_KEPT_GROUPS = 16
"""Row groups with pictures that stay in memory."""


def read_columns(metadata: Metadata, columns: Sequence[str]) -> dict[str, NDArray]:
    """Columns of all frames, in the order of episodes: `[frames, width]` float32 for vectors, `[frames]` for scalars.

    Raises:
        UserError: a file or column is missing, a vector has another width than its feature says, or the tables do not
            hold the episodes that the metadata tell of.
    """
    files = list(dict.fromkeys(metadata.data_files))
    wanted = [*columns, "episode_index"]

    def read(file: Path) -> arrow.Table:
        try:
            return parquet.read_table(file, columns=wanted)
        except (OSError, arrow.ArrowException) as error:
            raise UserError(f"{file} cannot be read: {error}") from error

    with ThreadPoolExecutor(4) as pool:
        tables = list(pool.map(read, files))
    for file, table in zip(files, tables, strict=True):
        if missing := [name for name in wanted if name not in table.column_names]:
            raise UserError(f"{file} has no column {', '.join(missing)}")
    whole = arrow.concat_tables([table.select(wanted) for table in tables])
    episodes = whole["episode_index"].to_numpy()
    expected = np.repeat(np.arange(len(metadata.lengths)), metadata.lengths)
    if not np.array_equal(episodes, expected):
        told = np.bincount(episodes, minlength=len(metadata.lengths)) if len(episodes) else np.zeros(1, np.int64)
        wrong = next((n for n, length in enumerate(metadata.lengths) if n >= len(told) or told[n] != length), None)
        what = "its episodes are out of order" if wrong is None else f"episode {wrong} has other frames than meta says"
        raise UserError(f"{metadata.root}: the tables under data/ do not match meta/: {what}")
    return {name: _values(whole[name], name, metadata) for name in columns}


def _values(column: arrow.ChunkedArray, name: str, metadata: Metadata) -> NDArray:
    array = column.combine_chunks()
    if not (arrow.types.is_list(array.type) or arrow.types.is_fixed_size_list(array.type)):
        return array.to_numpy(zero_copy_only=False)
    flat, width = array.flatten().to_numpy(zero_copy_only=False), metadata.width(name)
    if len(flat) != len(array) * width:
        raise UserError(
            f"{metadata.root}: {name} has {len(flat)} numbers in {len(array)} frames, where meta/info.json says "
            f"{width} each"
        )
    return np.ascontiguousarray(flat.reshape(len(array), width), dtype=np.float32)


class PictureTables:
    """Pictures that lie in the tables as encoded files (dtype `image`), decoded on demand."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self._groups: dict[tuple[Path, str], list[int]] = {}
        self._kept: OrderedDict[tuple[Path, str, int], list[bytes]] = OrderedDict()

    def read(self, camera: str, episode: int, frame: int) -> NDArray[np.uint8]:
        """A picture, `[height, width, 3]`.

        Raises:
            UserError: it cannot be decoded.
        """
        file = self.metadata.data_files[episode]
        first = next(n for n, each in enumerate(self.metadata.data_files) if each == file)
        row = int(self.metadata.lengths[first:episode].sum()) + frame
        data = self._bytes(file, camera, row)
        try:
            return np.array(Image.open(BytesIO(data)).convert("RGB"))
        except (OSError, SyntaxError) as error:
            raise UserError(f"{file}: row {row} of {camera} is not a picture: {error}") from error

    def _bytes(self, file: Path, camera: str, row: int) -> bytes:
        bounds = self._groups.get((file, camera))
        if bounds is None:
            described = parquet.ParquetFile(file).metadata
            sizes = [described.row_group(number).num_rows for number in range(described.num_row_groups)]
            bounds = self._groups[file, camera] = np.cumsum([0, *sizes]).tolist()
        group = int(np.searchsorted(bounds, row, side="right")) - 1
        key = (file, camera, group)
        if key not in self._kept:
            column = parquet.ParquetFile(file).read_row_group(group, columns=[camera])[camera]
            self._kept[key] = [each["bytes"] for each in column.to_pylist()]
            if len(self._kept) > _KEPT_GROUPS:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key][row - bounds[group]]
