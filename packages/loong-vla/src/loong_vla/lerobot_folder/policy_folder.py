"""A policy as a folder: opened, loaded into a module, and written so that lerobot runs it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from loong_core.checkpoint.hf_export import export_hf
from loong_core.checkpoint.hf_format import LEROBOT
from loong_core.checkpoint.hf_load import load_weights
from loong_core.checkpoint.hf_reader import HFFolder
from loong_core.checkpoint.hf_writer import DTYPE_NAMES, TOKENIZER_FILES
from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.config.files import user_path
from loong_core.errors import UserError
from loong_core.parallel.context import ParallelContext
from loong_vla.data.statistics import FeatureStatistics, Statistics
from loong_vla.families.family import PolicyConfig, PolicyFamily, StoredNames
from loong_vla.families.registry import family_of_kind, find_policy_family
from loong_vla.lerobot_folder.processors import tokenizer_name
from loong_vla.lerobot_folder.sizes_file import write_sizes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EMBODIMENTS_FILE = "embodiments.json"
"""Statistics of every embodiment, where it is not only the usual one; lerobot's processors have the first one's."""

ONE_FILE = 10**15
"""Bytes of a file of weights: lerobot reads one file."""


@dataclass(frozen=True)
class PolicyFolder:
    """A checkpoint folder, opened; no weight is read.

    Attributes:
        path: the folder.
        family: whose it is.
        config: the policy.
        folder: its files; None where there are no weights.
        statistics: by embodiment and feature; empty where the folder has none.
        tokenizer: folder of its tokenizer, None where it has none.
    """

    path: Path
    family: PolicyFamily
    config: PolicyConfig
    folder: HFFolder | None
    statistics: dict[str, FeatureStatistics]
    tokenizer: Path | None

    @property
    def stored(self) -> StoredNames:
        """What its tensors are called."""
        assert self.folder is not None
        return self.family.stored(self.config, self.folder.tensors)

    def statistics_of(self, embodiment: str | None = None) -> FeatureStatistics:
        """The statistics of an embodiment, by default the first.

        Raises:
            UserError: there is none of that name, or there are no statistics.
        """
        if not self.statistics:
            raise UserError(f"{self.path} has no statistics: policy_preprocessor.json is missing, or names none")
        if embodiment is None:
            return next(iter(self.statistics.values()))
        if embodiment not in self.statistics:
            raise UserError(
                f"embodiment: the policy knows no {embodiment!r}; it was trained on {', '.join(self.statistics)}"
            )
        return self.statistics[embodiment]

    def load(self, policy: nn.Module, context: ParallelContext) -> None:
        """Fill a policy built from `config`.

        Raises:
            UserError: the folder has no weights, or they are faulty.
        """
        if self.folder is None:
            raise UserError(f"{self.path} has a config but no weights to load: model.initialise=random draws them")
        stored = self.stored
        load_weights(
            [policy],
            stored.weight_map,
            self.config.num_layers,
            context,
            self.folder,
            harmless=[name.replace(".", r"\.") for name in stored.harmless],
        )


def open_policy(path: Path | str) -> PolicyFolder:
    """Open a folder in the form of lerobot's `pretrained_model/` (or one that has it).

    Raises:
        UserError: it is no such folder, or describes what is not served.
    """
    path = user_path(str(path))
    if (path / "pretrained_model").is_dir():
        path = path / "pretrained_model"
    folder = HFFolder(path, LEROBOT)
    family = find_policy_family(str(path / "config.json"), folder.config)
    config = family.read_config(path, folder.config)
    statistics = _read_embodiments(path) or {}
    if not statistics and (own := family.read_statistics(path)):
        statistics = {config.home_embodiment: own}
    weights = folder if folder.has_weights else None
    return PolicyFolder(path, family, config, weights, statistics, _tokenizer_of(path))


def write_policy(
    target: Path,
    config: PolicyConfig,
    pieces: Iterable[StatePiece],
    context: ParallelContext,
    dtype: torch.dtype,
    statistics: dict[str, FeatureStatistics],
    tokenizer: PreTrainedTokenizerBase,
    origin: PolicyFolder | None = None,
) -> None:
    """Write `pretrained_model/` as lerobot does. Collective over the context's ranks.

    Args:
        target: the folder that is to appear; one that is there gives way.
        config: the policy.
        pieces: this rank's weights, under lerobot's names.
        context: whose ranks take part.
        dtype: of the file.
        statistics: by embodiment; lerobot's processors get the first one's.
        tokenizer: goes with it.
        origin: what training began from, whose tensors that are not trained here are handed on; zeros without.
    """
    family = family_of_kind(config.kind)
    with TemporaryDirectory() as temporary:
        beside = Path(temporary)
        tokenizer.save_pretrained(beside)
        family.write_processors(beside, config, next(iter(statistics.values())), str(target.absolute()))
        if (sizes := config.sizes_json()) is not None:
            write_sizes(beside, sizes)
        if len(statistics) > 1 or next(iter(statistics)) != config.home_embodiment:
            (beside / EMBODIMENTS_FILE).write_text(_dumps(statistics), encoding="utf-8")
        export_hf(
            target,
            family.written_config(config, DTYPE_NAMES[dtype]),
            _with_handed_on(pieces, family.handed_on(config), origin, context),
            context,
            dtype,
            beside=beside,
            max_shard_size=ONE_FILE,
            replace=True,
            kind=LEROBOT,
        )


def _with_handed_on(
    pieces: Iterable[StatePiece], boxes: Sequence[Piece], origin: PolicyFolder | None, context: ParallelContext
) -> Iterator[StatePiece]:
    """The weights, and from rank 0 what nothing here is trained of."""
    yield from pieces
    if context.rank > 0:
        return
    if origin is None or origin.folder is None:
        yield from (StatePiece("weight", piece, torch.zeros(piece.sizes)) for piece in boxes)
        return
    theirs = origin.stored.theirs
    for piece in boxes:
        stored = replace(piece, name=theirs(piece.name))
        there = origin.folder.tensors.get(stored.name)
        if there is not None and there.shape == piece.global_shape:
            yield StatePiece("weight", piece, origin.folder.read(stored))
        else:
            yield StatePiece("weight", piece, torch.zeros(piece.sizes))


def _tokenizer_of(path: Path) -> Path | None:
    if any(file for pattern in TOKENIZER_FILES for file in path.glob(pattern)):
        return path
    name = tokenizer_name(path)
    return Path(name) if name and Path(name).is_dir() else None


def _read_embodiments(path: Path) -> dict[str, FeatureStatistics] | None:
    file = path / EMBODIMENTS_FILE
    if not file.is_file():
        return None
    try:
        return {
            embodiment: {
                feature: {name: np.asarray(each, np.float64) for name, each in entry.items()}
                for feature, entry in features.items()
            }
            for embodiment, features in json.loads(file.read_text(encoding="utf-8")).items()
        }
    except (ValueError, AttributeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error


def _dumps(statistics: dict[str, FeatureStatistics]) -> str:
    def plain(entry: Statistics) -> dict[str, Any]:
        return {name: values.tolist() for name, values in entry.items()}

    written = {
        embodiment: {feature: plain(entry) for feature, entry in features.items()}
        for embodiment, features in statistics.items()
    }
    return json.dumps(written, indent=2) + "\n"
