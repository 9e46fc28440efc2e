"""From what a user calls a model (a named size, or a folder) to its hyperparameters; imports no torch.

A folder is a transformer's (`config.json` and weights, diffusers' names or those of the family's own release) or a
diffusers pipeline's (`transformer/`, with two experts `transformer_2/` too, and `model_index.json`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

from loong_core.errors import ConfigError, Fault, UserError
from loong_dit.families.family import TEXT_LENGTH, DiffusionFamily
from loong_dit.families.model_config import DiffusionConfig
from loong_dit.families.registry import find_family, named_config, named_configs
from loong_dit.safetensors_shapes import tensor_shapes

Expert = Literal["both", "high", "low"]

TRANSFORMERS: tuple[str, ...] = ("transformer", "transformer_2")
"""Folders of a pipeline: the only transformer or the expert of high noise, and the expert of low noise."""


@dataclass(frozen=True)
class ModelSource:
    """A model before it is built.

    Attributes:
        name: what the user called it.
        hf_config: diffusers' `config.json` of a transformer, overrides applied.
        family: whose it is.
        config: what the config says.
        parts: what is trained, by diffusers' folder: the folder of its weights, None where they are to be drawn.
        boundary: where the experts meet, as a share of the timesteps; None for a model of one transformer.
        per_token_time: whether condition frames are clean tokens with a timestep of 0 (Wan 2.2 TI2V).
        original: whether the weights have the names of the family's own release.
        pipeline: the folder of the whole pipeline, None where there is none.
    """

    name: str
    hf_config: dict[str, Any]
    family: DiffusionFamily
    config: DiffusionConfig
    parts: Mapping[str, Path | None]
    boundary: float | None = None
    per_token_time: bool = False
    original: bool = False
    pipeline: Path | None = None

    @property
    def clean_references(self) -> bool:
        """Whether the tokens of reference pictures have timestep 0 (Qwen-Image-Edit-2511)."""
        return self.hf_config.get("zero_cond_t") is True

    @property
    def text_length(self) -> int | None:
        """Captions' embeddings are padded with zeros to this many tokens; None: each keeps its own length."""
        return self.hf_config.get(TEXT_LENGTH, self.family.text_length)

    @property
    def experts(self) -> int:
        """Transformers in the model that is trained."""
        return len(self.parts)

    @property
    def has_weights(self) -> bool:
        """Whether every part has a folder of weights."""
        return all(folder is not None for folder in self.parts.values())

    def of_expert(self, expert: Expert) -> ModelSource:
        """The same with one of two experts only.

        Raises:
            UserError: the model has one transformer.
        """
        if expert == "both":
            return self
        if self.boundary is None or self.experts < 2:
            raise UserError(f"model.expert is {expert}, but {self.name} has one transformer; leave the key out")
        chosen = TRANSFORMERS[0] if expert == "high" else TRANSFORMERS[1]
        return replace(self, parts={chosen: self.parts[chosen]})


def open_source(
    source: str | Path, overrides: Mapping[str, Any] | None = None, *, text_length: int | None = None
) -> ModelSource:
    """Find a model and read its config; no weight is read.

    Args:
        source: name of a shipped size (these come first), or path of a folder.
        overrides: keys of `config.json` to replace.
        text_length: tokens that captions are padded to, where they are not to be those of the model.

    Raises:
        UserError: there is no such name or folder, no family serves it, or the config has faults (all told at once).
    """
    found = _open_source(source, overrides or {})
    if text_length is None:
        return found
    if found.family.text_length is None:
        raise UserError(
            f"model.text_length is {text_length}, but captions of family {found.family.name} keep their own length; "
            "leave the key out"
        )
    return replace(found, hf_config={**found.hf_config, TEXT_LENGTH: text_length})


def _open_source(source: str | Path, overrides: Mapping[str, Any]) -> ModelSource:
    name, path = str(source), Path(source).expanduser()
    if name.lower() not in named_configs() and path.is_dir():
        return _of_folder(name, path, overrides)
    if name.lower() not in named_configs() and (len(path.parts) > 1 or name.startswith((".", "~"))):
        raise UserError(f"model {name}: there is no such folder")
    hf = named_config(name)
    boundary = hf.get("_boundary_ratio")
    parts: dict[str, Path | None] = dict.fromkeys(TRANSFORMERS if boundary is not None else TRANSFORMERS[:1])
    return _source(name, hf, overrides, parts, boundary=boundary, per_token_time="ti2v" in name.lower())


def _of_folder(name: str, path: Path, overrides: Mapping[str, Any]) -> ModelSource:
    """A pipeline's folder, or a transformer's."""
    if (path / TRANSFORMERS[0] / "config.json").is_file():
        index = _read(path / "model_index.json") if (path / "model_index.json").is_file() else {}
        two = (path / TRANSFORMERS[1] / "config.json").is_file()
        parts = {part: path / part for part in (TRANSFORMERS if two else TRANSFORMERS[:1])}
        boundary = index.get("boundary_ratio") if two else None
        if two and not (isinstance(boundary, (int, float)) and 0 < boundary < 1):
            raise UserError(
                f"{path / 'model_index.json'}: boundary_ratio is {boundary!r}, but the pipeline has two transformers; "
                "give the share of the timesteps at which they meet, such as 0.875"
            )
        hf = _read(path / TRANSFORMERS[0] / "config.json")
        if two and _plain(_read(path / TRANSFORMERS[1] / "config.json")) != _plain(hf):
            raise UserError(f"{path}: transformer and transformer_2 differ in config.json; experts are of one size")
        time = index.get("expand_timesteps") is True
        return _source(name, hf, overrides, parts, boundary=boundary, per_token_time=time, pipeline=path)
    if (path / "run.yaml").is_file():
        raise UserError(f"model {name} is a run's folder, not a model's; a finished run has {path / 'hf'}")
    return _source(name, _read(path / "config.json"), overrides, {TRANSFORMERS[0]: path})


def _source(
    name: str, hf: dict[str, Any], overrides: Mapping[str, Any], parts: Mapping[str, Path | None], **facts: Any
) -> ModelSource:
    family = find_family(hf.get("_class_name"))
    original = hf.get("_class_name") == family.original_class_name
    if original:
        folder = parts[TRANSFORMERS[0]]
        hf = family.diffusers_config(hf, {} if folder is None else tensor_shapes(folder))
    hf = _overridden(hf, overrides)
    length = hf.get(TEXT_LENGTH, 1)
    if type(length) is not int or length < 1:
        raise UserError(f"{name}: {TEXT_LENGTH} in config.json is {length!r}, not a whole number above 0")
    return ModelSource(
        name, hf, family, family.config(hf), {part: _with_weights(at) for part, at in parts.items()}, original=original,
        **facts,
    )  # fmt: skip


def _with_weights(folder: Path | None) -> Path | None:
    return folder if folder is not None and any(folder.glob("*.safetensors*")) else None


def _overridden(hf: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    faults = []
    for key in overrides:
        if key not in hf or key.startswith("_"):
            near = get_close_matches(key, [each for each in hf if not each.startswith("_")], n=1)
            fix = f"the nearest key is {near[0]}" if near else f"keys: {', '.join(sorted(hf))}"
            faults.append(Fault(f"model.overrides.{key}", "is not a key of the model's config.json", fix))
    if faults:
        raise ConfigError(faults)
    return {**hf, **overrides}


def _plain(hf: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in hf.items() if not key.startswith("_")}


def _read(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{file} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{file} holds a {type(value).__name__}, not a JSON object")
    return value
