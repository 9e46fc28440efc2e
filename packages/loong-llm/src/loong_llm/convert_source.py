"""What `convert` reads: a Hugging Face folder, a run folder, one checkpoint of a run, or Megatron's, seen alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor

from loong_core.checkpoint.hf_format import DTYPES
from loong_core.checkpoint.hf_reader import WeightsError
from loong_core.checkpoint.megatron_weights import MegatronWeights, find_iteration
from loong_core.checkpoint.pieces import Piece, StatePiece
from loong_core.checkpoint.resume_folder import MANIFEST, ResumeFolder, published
from loong_core.config.run_folder import RunFolder
from loong_core.errors import Fault, UserError
from loong_llm.model import ModelSource, open_model
from loong_llm.tokenizer import load_tokenizer


@dataclass(frozen=True)
class ConvertSource:
    """A model whose tensors can be read one by one.

    Attributes:
        hf_config: its `config.json`.
        dtypes: what each tensor is converted to unless another dtype is asked for, by name, in order.
        shapes: shape of each.
        read: gives the values of one; raises `WeightsError` if some are not finite.
        left_out: names of tensors that are there and not part of the model.
        companions: a model folder whose tokenizer and generation files come along, if any.
        tokenizer: what saves the tokenizer's files into a folder, if they come from elsewhere.
        tables: names of the tensors that have a row for each token of the vocabulary.
    """

    hf_config: dict[str, Any]
    dtypes: dict[str, torch.dtype]
    shapes: dict[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    left_out: tuple[str, ...] = ()
    companions: Path | None = None
    tokenizer: Callable[[Path], Any] | None = None
    tables: tuple[str, ...] = ()


OpenModel = Callable[..., ModelSource]
"""What finds a model by its name or folder, overrides, and what else a run file's `model` section names."""

_OF_EVERY_MODEL = ("source", "overrides", "initialise")


def open_source(
    path: Path, step: int | None = None, open_model: OpenModel = open_model, described_by: str | None = None
) -> ConvertSource:
    """Find out what a folder is, and check that the model in it is whole.

    Args:
        path: a Hugging Face folder, a run's `output`, a checkpoint in a run's `checkpoints`, or a checkpoint of
            Megatron's in format `torch_dist`.
        step: which of a run's checkpoints, or of Megatron's; the last by default.
        open_model: what finds the model of a folder or a run.
        described_by: of a checkpoint of Megatron's: the named size, or the Hugging Face folder, whose `config.json`
            describes its model.

    Raises:
        UserError: if it is none of these, or not whole; every fault is told.
    """
    if (iteration := find_iteration(path, step)) is not None:
        if described_by is None:
            what = f"{path} is a checkpoint of Megatron's, which does not say which model it is of"
            raise UserError(
                f"{what}; name it, or a folder with its config.json and tokenizer: loong-llm convert --model"
            )
        return _megatron(iteration, open_model(described_by))
    if described_by is not None:
        raise UserError(f"--model would be ignored: {path} is no checkpoint of Megatron's, and says what it is of")
    run = RunFolder(path)
    if (path / MANIFEST).is_file():
        return _checkpoint(path, RunFolder(path.absolute().parent.parent), open_model)
    if run.run_yaml.is_file():
        return _checkpoint(_of_step(run, step), run, open_model)
    if step is not None:
        raise UserError(f"{path} is not a run's folder, so it has no step {step}")
    return _hugging_face(path, open_model)


def _hugging_face(path: Path, open_model: OpenModel) -> ConvertSource:
    model = open_model(path.absolute())
    folder = model.weights
    if folder is None:
        raise UserError(f"{path} has a config but no weights to convert")
    shapes = model.weight_map.tensors(model.config.num_layers)
    optional = {name: shapes[first] for name, first in model.duplicates().items() if name not in shapes}
    folder.check(shapes, optional=optional, harmless=model.family.harmless_tensors)

    def read(name: str) -> Tensor:
        piece = Piece.whole(name, shapes[name])
        values = folder.read(piece)
        if fault := folder.not_finite(piece, values):
            raise WeightsError(folder.path, [fault])
        return values

    dtypes = {name: DTYPES[folder.tensors[name].dtype] for name in shapes}
    left_out = tuple(sorted(folder.tensors.keys() - shapes.keys()))
    return ConvertSource(model.hf_config, dtypes, shapes, read, left_out, companions=folder.path, tables=_tables(model))


def _megatron(path: Path, model: ModelSource) -> ConvertSource:
    weights = MegatronWeights(path, model.weight_map, model.config)
    shapes = model.weight_map.tensors(model.config.num_layers)

    def read(name: str) -> Tensor:
        values = weights.read(name)
        if wrong := int((~torch.isfinite(values)).sum()):
            what = f"{name} has {wrong} NaN or Inf among {values.numel()} numbers"
            raise WeightsError(path, [Fault(str(path), what, "convert an earlier iteration")])
        return values

    return ConvertSource(
        model.hf_config,
        {name: weights.dtypes[name] for name in shapes},
        shapes,
        read,
        weights.left_out,
        companions=model.weights.path if model.weights else model.tokenizer_dir,
        tables=_tables(model),
    )


def _checkpoint(path: Path, run: RunFolder, open_model: OpenModel) -> ConvertSource:
    folder = ResumeFolder(path)
    if damaged := [finding for name in folder.files if (finding := folder.check_file(name))]:
        raise folder.refuse(damaged)
    model, tokenizer, precision = _of_run(run, open_model)
    shapes = model.weight_map.tensors(model.config.num_layers)
    pieces = {name: StatePiece("weight", Piece.whole(name, shape)) for name, shape in shapes.items()}
    if faults := [Fault(str(path), fault) for piece in pieces.values() if (fault := folder.check_piece(piece))]:
        raise WeightsError(path, faults)

    def read(name: str) -> Tensor:
        values = folder.read(pieces[name])
        if wrong := int((~torch.isfinite(values)).sum()):
            what = f"{name} has {wrong} NaN or Inf among {values.numel()} numbers"
            raise WeightsError(path, [Fault(str(path), what, "convert an earlier step")])
        return values

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    hf_config = dict(model.hf_config)
    save_tokenizer = None
    if tokenizer is not None:
        opened = load_tokenizer(tokenizer, model.tokenizer_dir)
        hf_config |= {key: getattr(opened, key) for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        save_tokenizer = opened.save_pretrained
    return ConvertSource(
        hf_config,
        dict.fromkeys(shapes, dtype),
        shapes,
        read,
        companions=model.weights.path if model.weights else model.tokenizer_dir,
        tokenizer=save_tokenizer,
        tables=_tables(model),
    )


def _tables(model: ModelSource) -> tuple[str, ...]:
    """The tensors of embedding and head."""
    rules = [rule for rule in model.weight_map.rules if rule.ours in ("embedding.weight", "head.weight")]
    return tuple(dict.fromkeys(span.name for rule in rules for span in rule.spans))


def _of_step(run: RunFolder, step: int | None) -> Path:
    """The folder of a run's checkpoint."""
    found = {ResumeFolder(path).step: path for path in published(run.checkpoints)}
    if not found:
        raise UserError(f"{run.root} has no checkpoint yet; its run publishes one every `checkpoint.every` steps")
    if step is None:
        return found[max(found)]
    if step not in found:
        raise UserError(f"{run.root} has no checkpoint of step {step}; it has {', '.join(map(str, sorted(found)))}")
    return found[step]


def _of_run(run: RunFolder, open_model: OpenModel) -> tuple[ModelSource, str | None, str]:
    """The model that a run trains, what it was told of the tokenizer, and its precision."""
    try:
        settings = yaml.safe_load(run.run_yaml.read_text(encoding="utf-8"))
        section = settings["model"]
        others = {key: part for key, part in section.items() if key not in _OF_EVERY_MODEL and part is not None}
        model = open_model(section["source"], section["overrides"], **others)
        return model, settings["tokenizer"], settings["precision"]
    except FileNotFoundError:
        raise UserError(f"{run.run_yaml} is missing: it says which model the checkpoint is of") from None
    except (yaml.YAMLError, KeyError, TypeError) as error:
        raise UserError(f"{run.run_yaml} cannot be read: {error!r}") from error
