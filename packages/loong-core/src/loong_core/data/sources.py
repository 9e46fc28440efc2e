"""Where text comes from: paths, folders and globs of a run file become a fixed list of files of known formats.

Nothing is read here but names and, for a folder saved by `datasets`, its small state file. The order of the files is
that of their names, so that every rank and every start sees the same documents in the same order.
"""

from __future__ import annotations

import difflib
import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from loong_core.config.files import user_path
from loong_core.errors import UserError
from loong_core.json_text import read_json_object

Format = Literal["text", "jsonl", "parquet", "arrow", "indexed"]

SUFFIXES: dict[str, Format] = {
    ".txt": "text",
    ".text": "text",
    ".md": "text",
    ".rst": "text",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".jsonl.gz": "jsonl",
    ".json.gz": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".bin": "indexed",
    ".idx": "indexed",
}
"""Which format a file name's ending stands for. `indexed` is Megatron's pair of `.bin` and `.idx`."""

_SPLITS = ("train", "validation", "valid", "val", "test", "dev")
_NEVER_DATA = ("readme", "license", "licence", "changelog", "dataset_info", "state", "dataset_dict", "dataset_infos")


class Weighted(Protocol):
    """A source that may have a weight, as `SourceSpec` has."""

    @property
    def path(self) -> str:
        """Where it is, as the user wrote it."""
        ...

    @property
    def weight(self) -> float | None:
        """Its share in a blend."""
        ...


@dataclass(frozen=True)
class SourceSpec:
    """One entry of a run file's `data.train` or `data.validation`.

    Attributes:
        path: a file, a folder, a glob, or the prefix of a `.bin`/`.idx` pair.
        weight: its share in a blend, relative to the others' weights; None: the share of its size.
    """

    path: str
    weight: float | None = None


@dataclass(frozen=True)
class SourceFile:
    """One file to read and how. For `indexed`, `path` is the common prefix of the `.bin` and `.idx` files."""

    path: Path
    format: Format

    @property
    def size(self) -> int:
        """Bytes on disk (of the `.bin` file for `indexed`)."""
        return (indexed_paths(self.path)[0] if self.format == "indexed" else self.path).stat().st_size


def indexed_paths(prefix: Path) -> tuple[Path, Path]:
    """The `.bin` and `.idx` files of a prefix."""
    return Path(f"{prefix}.bin"), Path(f"{prefix}.idx")


def resolve(path: str) -> list[SourceFile]:
    """The files that `path` stands for, in reading order.

    Raises:
        UserError: nothing is there (names the nearest existing name), the format is unknown, a folder holds no data or
            several splits at once.
    """
    if not path.strip():
        raise UserError("an empty path; give a file, a folder, a glob or the prefix of a .bin/.idx pair")
    here = user_path(path)
    try:
        here.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # a glob or a prefix, or nothing
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be looked at: {error}") from error
    if here.is_dir():
        return _folder(here)
    if here.is_file():
        return [_file(here)]
    if all(half.is_file() for half in indexed_paths(here)):
        return [SourceFile(here, "indexed")]
    if any(half.is_file() for half in indexed_paths(here)):
        return [_pair(here)]
    if glob.has_magic(path):
        found = sorted({Path(match) for match in glob.glob(str(here), recursive=True) if Path(match).is_file()})
        if not found:
            raise UserError(f"no file matches {path}{_nearest(here)}")
        return _unique(_file(match) for match in found)
    raise UserError(f"{path} does not exist{_nearest(here)}")


def _file(path: Path) -> SourceFile:
    kind = format_of(path)
    if kind is None:
        known = ", ".join(sorted(SUFFIXES))
        raise UserError(f"{path}: unknown format {path.suffix or 'without a suffix'}; known endings are {known}")
    return _pair(path.with_suffix("")) if kind == "indexed" else SourceFile(path, kind)


def format_of(path: Path) -> Format | None:
    """The format that a file's name stands for, None if none."""
    name = path.name.lower()
    matching = [suffix for suffix in SUFFIXES if name.endswith(suffix)]
    return SUFFIXES[max(matching, key=len)] if matching else None


def _pair(prefix: Path) -> SourceFile:
    data, index = indexed_paths(prefix)
    for half, other in ((data, index), (index, data)):
        if not half.is_file():
            raise UserError(f"{half} is missing, though {other.name} is there; the two files belong together")
    return SourceFile(prefix, "indexed")


def _folder(folder: Path) -> list[SourceFile]:
    if (folder / "dataset_dict.json").is_file():
        return _saved_splits(folder)
    if (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file():
        return _saved_dataset(folder)
    candidates = [path for path in sorted(folder.rglob("*")) if path.is_file() and _may_be_data(path, folder)]
    files = _unique(_file(path) for path in candidates)
    if not files:
        names = ", ".join(path.name for path in sorted(folder.iterdir())[:8]) or "nothing"
        known = ", ".join(sorted(SUFFIXES))
        raise UserError(f"{folder} holds no data file ({names}); known endings are {known}")
    splits = {split for file in files if (split := _split_of(file.path, folder))}
    if len(splits) > 1:
        examples = ", ".join(sorted(splits))
        raise UserError(
            f"{folder} holds several splits ({examples}), which would be read as one; name one by a glob, "
            f"for example {_glob_of(files[0].path, folder)}"
        )
    return files


def _may_be_data(path: Path, folder: Path) -> bool:
    parts = path.relative_to(folder).parts
    hidden = any(part.startswith((".", "_")) for part in parts)
    return not hidden and format_of(path) is not None and path.name.split(".")[0].lower() not in _NEVER_DATA


def _split_of(path: Path, folder: Path) -> str | None:
    """The split that a file's name or folder begins with, as in `data/train-00000-of-00002.parquet`."""
    for part in reversed(path.relative_to(folder).parts):
        for split in _SPLITS:
            if part.lower() == split or part.lower().startswith((f"{split}-", f"{split}_", f"{split}.")):
                return split
    return None


def _glob_of(path: Path, folder: Path) -> str:
    split = _split_of(path, folder)
    suffix = "".join(path.suffixes[-1:])
    inside = path.parent if path.parent.name == split else None
    return str(inside / f"*{suffix}") if inside else str(path.parent / f"{split}*{suffix}")


def _saved_splits(folder: Path) -> list[SourceFile]:
    splits = read_json_object(folder / "dataset_dict.json").get("splits")
    if not isinstance(splits, list) or not all(isinstance(split, str) for split in splits):
        raise UserError(f"{folder / 'dataset_dict.json'} does not list the splits; save the dataset again")
    if len(splits) == 1:
        return _saved_dataset(folder / splits[0])
    choices = ", ".join(str(folder / split) for split in splits) or "none"
    raise UserError(f"{folder} is a saved dataset of {len(splits)} splits; name one of them: {choices}")


def _saved_dataset(folder: Path) -> list[SourceFile]:
    state = read_json_object(folder / "state.json")
    if state.get("_indices_data_files"):
        raise UserError(f"{folder} was saved with an indices mapping by an old `datasets`; load and save it again")
    try:
        files = [SourceFile(folder / entry["filename"], "arrow") for entry in state.get("_data_files", [])]
    except (TypeError, KeyError) as error:
        raise UserError(f"{folder / 'state.json'} does not list the data files ({error!r}); save it again") from error
    for file in files:
        if not file.path.is_file():
            raise UserError(f"{file.path} is missing, though {folder / 'state.json'} lists it; copy the whole folder")
    if not files:
        raise UserError(f"{folder} is a saved dataset without a single data file")
    return files


def _unique(files: Iterable[SourceFile]) -> list[SourceFile]:
    return list(dict.fromkeys(files))


def _nearest(path: Path) -> str:
    """What exists nearby, as the end of an error message."""
    missing, parent = path, path.parent
    while not parent.is_dir() and parent != parent.parent:
        missing, parent = parent, parent.parent
    if not parent.is_dir():
        return ""
    names = sorted(entry.name for entry in parent.iterdir() if not entry.name.startswith("."))
    close = difflib.get_close_matches(missing.name, names, n=1, cutoff=0.5)
    if close:
        return f"; the nearest name there is {parent / close[0]}"
    wanted = format_of(missing)
    alike = [name for name in names if (kind := format_of(Path(name))) and kind == (wanted or kind)]
    if alike:
        return f"; {parent.resolve()} holds {', '.join(alike[:5])}{' ...' if len(alike) > 5 else ''}"
    return f"; {parent.resolve()} holds no {f'file of format {wanted}' if wanted else 'data file'}"


def weights_of(specs: Sequence[Weighted]) -> list[float] | None:
    """The weights of a blend, or None where each source has the share of its size.

    Raises:
        UserError: some have a weight and others none, or a weight is not a positive finite number.
    """
    given = [spec.weight for spec in specs if spec.weight is not None]
    if not given:
        return None
    if len(given) < len(specs):
        without = next(spec.path for spec in specs if spec.weight is None)
        raise UserError(f"{without} has no weight, but other sources have one; give all of them a weight, or none")
    for spec in specs:
        if not (spec.weight is not None and 0 < spec.weight < float("inf")):
            raise UserError(f"{spec.path}: weight {spec.weight} is not a positive number; leave the source out instead")
    return given
