"""A transformer's weights from one folder, or a run's checkpoint, to another, under either names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import yaml
from torch import Tensor

from loong_core.checkpoint.hf_format import DIFFUSERS, DTYPES
from loong_core.checkpoint.hf_reader import HFFolder, WeightsError
from loong_core.checkpoint.hf_writer import DEFAULT_SHARD_SIZE, FolderWriter, plan_shards
from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.checkpoint.resume_folder import ResumeFolder, published
from loong_core.config import RunFolder
from loong_core.engine.fsdp.ema import EMA
from loong_core.errors import Fault, UserError
from loong_dit.model_source import ModelSource, open_source

Names = Literal["diffusers", "original"]

_PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Converted:
    """What was written: its folders, and how many tensors and bytes are in them."""

    folders: list[Path]
    tensors: int
    size: int


@dataclass(frozen=True)
class _Weights:
    """Where a transformer's weights come from: dtype by diffusers' name, and what reads one."""

    source: ModelSource
    dtypes: dict[str, torch.dtype]
    read: Callable[[str], Tensor]


def convert(
    source: Path,
    output: Path,
    *,
    names: Names = "diffusers",
    dtype: str = "keep",
    step: int | None = None,
    raw: bool = False,
    max_shard_size: int = DEFAULT_SHARD_SIZE,
    replace: bool = False,
) -> Converted:
    """Write a model's transformer, or both of its experts, anew.

    Args:
        source: a transformer's folder under either names, a pipeline's, or a run's.
        output: folder to write; two experts get a folder in it each.
        names: whose the tensors get.
        dtype: `fp32`, `bf16`, `fp16`, or `keep`.
        step: of a run: which checkpoint; the last by default.
        raw: of a run with averaged weights: the weights themselves.
        max_shard_size: bytes of a file.
        replace: whether a folder that is there gives way.

    Raises:
        UserError: the source is none of these, not whole, or the output is taken.
    """
    if dtype not in (*_PRECISIONS, "keep"):
        raise UserError(f"--dtype {dtype} is not known; take fp32, bf16, fp16 or keep")
    parts = _of_run(source, step, raw) if (source / "run.yaml").is_file() else _of_folders(source)
    first = next(iter(parts.values())).source
    if names == "original" and first.family.original_class_name is None:
        raise UserError(f"family {first.family.name} has no other names than diffusers'; leave --names out")
    folders, tensors, size = [], 0, 0
    for part, weights in parts.items():
        folder = output if len(parts) == 1 else output / part
        named = {_name(name, names, weights.source): name for name in sorted(weights.dtypes)}
        shapes = weights.source.family.weight_map(weights.source.config).tensors(weights.source.config.num_layers)
        shards = plan_shards(
            {
                new: (shapes[old], weights.dtypes[old] if dtype == "keep" else _PRECISIONS[dtype])
                for new, old in named.items()
            },
            max_shard_size,
            DIFFUSERS,
        )
        writer = FolderWriter(folder, replace=replace, kind=DIFFUSERS)
        writer.begin()
        try:
            for shard in shards:
                writer.write_shard(shard, lambda new, weights=weights, named=named: weights.read(named[new]))
            writer.publish(shards, _config(weights.source, names))
        except BaseException:
            writer.discard()
            raise
        folders.append(folder)
        tensors += len(named)
        size += sum(shard.data_size for shard in shards)
    return Converted(folders, tensors, size)


def _name(name: str, names: Names, source: ModelSource) -> str:
    return source.family.original_name(name) if names == "original" else name


def _config(source: ModelSource, names: Names) -> dict[str, Any]:
    return source.family.original_config(source.hf_config) if names == "original" else source.hf_config


def _of_folders(path: Path) -> dict[str, _Weights]:
    source = open_source(path)
    found = {}
    for part, at in source.parts.items():
        if at is None:
            raise UserError(f"{path} has a config but no weights to convert")
        folder = HFFolder(at, DIFFUSERS)
        shapes = source.family.weight_map(source.config).tensors(source.config.num_layers)
        stored = {name: source.family.original_name(name) if source.original else name for name in shapes}
        folder.check({stored[name]: shape for name, shape in shapes.items()})

        def read(name: str, folder: HFFolder = folder, stored: dict[str, str] = stored) -> Tensor:
            piece = Piece.whole(stored[name], folder.tensors[stored[name]].shape)
            values = folder.read(piece)
            if fault := folder.not_finite(piece, values):
                raise WeightsError(folder.path, [fault])
            return values

        found[part] = _Weights(source, {name: DTYPES[folder.tensors[stored[name]].dtype] for name in shapes}, read)
    return found


def _of_run(path: Path, step: int | None, raw: bool) -> dict[str, _Weights]:
    run = RunFolder(path)
    checkpoints = {ResumeFolder(each).step: each for each in published(run.checkpoints)}
    if not checkpoints or (step is not None and step not in checkpoints):
        there = f"it has {', '.join(map(str, sorted(checkpoints)))}" if checkpoints else "it has none yet"
        raise UserError(f"{path} has no checkpoint{'' if step is None else f' of step {step}'}; {there}")
    at = checkpoints[max(checkpoints) if step is None else step]
    folder = ResumeFolder(at)
    if damaged := [finding for name in folder.files if (finding := folder.check_file(name))]:
        raise folder.refuse(damaged)
    try:
        settings = yaml.safe_load(run.run_yaml.read_text(encoding="utf-8"))
        section = settings["model"]
        source = open_source(section["source"], section["overrides"], text_length=section["text_length"]).of_expert(
            section["expert"]
        )
        if settings.get("lora") is not None:
            raise UserError(f"{path} trains adapters, which it writes at its end; there is no model to convert")
        dtype = _PRECISIONS[settings["precision"]]
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"{run.run_yaml} is not a run's: {error}") from error
    shapes = source.family.weight_map(source.config).tensors(source.config.num_layers)
    kind = EMA if not raw and any(key.startswith(f"{EMA}/") for key in folder.tensors) else "weight"
    found = {}
    for part in source.parts:
        prefix = "" if source.experts == 1 else f"{part}."
        pieces = {name: Piece.whole(f"{prefix}{name}", shape) for name, shape in shapes.items()}

        def state(name: str, pieces: dict[str, Piece] = pieces) -> StatePiece:
            averaged = StatePiece(kind, pieces[name])
            return (
                averaged if averaged.key in folder.tensors else StatePiece("weight", pieces[name])
            )  # frozen: no average

        wrong = [Fault(str(at), fault) for name in pieces if (fault := folder.check_piece(state(name)))]
        if wrong:
            raise WeightsError(at, wrong)
        found[part] = _Weights(source, dict.fromkeys(shapes, dtype), lambda name, state=state: folder.read(state(name)))
    return found
