"""Filling a model with the weights of a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from loong_core.checkpoint.hf_fill import fill
from loong_core.checkpoint.hf_reader import HFFolder, WeightsError
from loong_core.checkpoint.pieces import Piece
from loong_core.checkpoint.weight_map import WeightMap
from loong_core.errors import Fault
from loong_core.parallel.context import ParallelContext


@torch.no_grad()
def load_weights(
    stages: Iterable[nn.Module],
    weight_map: WeightMap,
    num_layers: int,
    context: ParallelContext,
    folder: HFFolder,
    *,
    harmless: Iterable[str] = (),
    duplicates: Mapping[str, str] | None = None,
) -> None:
    """Copy this rank's part of a folder's tensors into its parameters, reading nothing else.

    Args:
        stages: the modules that this rank holds.
        weight_map: their family's.
        num_layers: layers of the whole model.
        context: the one the modules were built with.
        folder: where the weights are.
        harmless: patterns of tensors that may be there without a use.
        duplicates: second copies of a tied table that may be there: name to the name it is tied to. One whose values
            differ is a fault, since the model would not compute what the folder's other users see.

    Raises:
        WeightsError: with every tensor that is missing, too many, wrong-shaped or not finite, and every faulty file.
    """
    expected = weight_map.tensors(num_layers)
    second = {name: first for name, first in (duplicates or {}).items() if name not in expected}
    folder.check(expected, optional={name: expected[first] for name, first in second.items()}, harmless=harmless)
    tied = [name for name in second if name in folder.tensors]
    compared: list[Piece] = []

    def wanted() -> Iterator[tuple[Piece, Tensor]]:
        for stage in stages:
            for parameter, placement in weight_map.placements(stage, context):
                parts = placement.from_local(parameter)
                if sum(part.numel() for part in parts) < parameter.numel():
                    parameter.zero_()  # padding
                compared.extend(placement.pieces)
                yield from zip(placement.pieces, parts, strict=True)

    faults = [
        fault for piece in fill(folder, wanted()) if (fault := folder.not_finite(piece, folder.read(piece))) is not None
    ]
    for name in tied:
        for piece in compared:
            if second[name] == piece.name:
                faults.extend(_differs(folder, piece, name))
    if faults:
        raise WeightsError(folder.path, faults)


def _differs(folder: HFFolder, piece: Piece, name: str) -> list[Fault]:
    """A fault if the second copy of a tied table is not equal to the first."""
    values, other = folder.read(piece), folder.read(replace(piece, name=name))
    rows = int((other != values).any(dim=-1).sum())
    if not rows:
        return []
    what = f"{rows} rows of {name} differ from {piece.name}, but config.json has tie_word_embeddings true"
    return [Fault(str(folder.tensors[name].file), what, "set tie_word_embeddings to false in config.json")]
