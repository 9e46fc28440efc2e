"""A GR00T policy's folder to its configuration: lerobot's form, with `sizes.json`, or NVIDIA's. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from loong_core.errors import ConfigError, Fault, UserError
from loong_core.json_text import read_json_object
from loong_vla.data.recordings import ACTION, STATE
from loong_vla.families.groot.policy_config import (
    EMBODIMENTS,
    VERSIONS,
    GrootConfig,
    Version,
    published,
)
from loong_vla.lerobot_folder.sizes_file import SIZES_FILE

IDS_FILE = "embodiment_id.json"
"""NVIDIA's file of embodiments' numbers."""

_UNSERVED = {"use_relative_actions": (False,), "action_decode_transform": (None, "none", "auto")}
_OWN = ("type", "cameras", "chunk_size", "n_action_steps", "max_state_dim", "max_action_dim", "embodiment_tag",
        "output_features")  # fmt: skip


def read_groot_config(folder: Path, values: Mapping[str, Any]) -> GrootConfig:
    """The policy that a folder describes.

    Args:
        folder: lerobot's, which may hold `sizes.json`, or NVIDIA's.
        values: its `config.json`.

    Raises:
        UserError: with everything in it that cannot be served.
    """
    if "type" in values:
        return _read_lerobot(folder, values)
    version = VERSIONS[str(values.get("model_type"))]
    model = _completed(version, values)
    return _checked(
        GrootConfig(
            version=version,
            cameras=(),
            state_dim=0,
            action_dim=0,
            model=model,
            chunk_size=model["action_horizon"],
            n_action_steps=model["action_horizon"],
            ids=_ids(folder, version),
            lerobot={"base_model_path": str(folder)},
        )
    )


def overridden(config: GrootConfig, path: Path, overrides: Mapping[str, Any]) -> GrootConfig:
    """The policy with keys of `config.json` or of the model replaced.

    Raises:
        ConfigError: with everything that cannot be served, and keys that mean nothing.
    """
    model = {key: each for key, each in overrides.items() if key in config.model}
    rest = {key: each for key, each in overrides.items() if key not in config.model}
    known = {*config.to_json(), *config.model}
    faults = []
    for key in rest:
        if key not in known:
            near = get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else ""
            faults.append(Fault(f"model.overrides.{key}", "is no key of the policy", hint))
    if faults:
        raise ConfigError(faults)
    changed = replace(config, model={**config.model, **model})
    return _read_lerobot(path, config.to_json() | rest, changed)


def _read_lerobot(folder: Path, values: Mapping[str, Any], known: GrootConfig | None = None) -> GrootConfig:
    """From lerobot's keys; the model is `known`'s, or what the folder says."""
    where, version = str(folder / "config.json"), VERSIONS[str(values["type"])]
    faults = [
        Fault(where, f"{key} is {values[key]!r}", f"only {served[0]} is served")
        for key, served in _UNSERVED.items()
        if values.get(key, served[0]) not in served
    ]
    inputs, outputs = values.get("input_features") or {}, values.get("output_features") or {}
    model, ids = (known.model, known.ids) if known is not None else _read_model(folder, version, values)
    if faults:
        raise ConfigError(faults)
    kept = {key: each for key, each in values.items() if key not in _OWN}
    chunk = values.get("chunk_size", model["action_horizon"])
    return _checked(
        GrootConfig(
            version=version,
            cameras=tuple(name for name, each in inputs.items() if each.get("type") == "VISUAL"),
            state_dim=_width(inputs, STATE),
            action_dim=_width(outputs, ACTION),
            model=model,
            chunk_size=chunk,
            n_action_steps=values.get("n_action_steps", chunk),
            embodiment=values.get("embodiment_tag", "new_embodiment"),
            ids=ids,
            lerobot=kept,
        )
    )


def _read_model(folder: Path, version: Version, values: Mapping[str, Any]) -> tuple[dict[str, Any], Mapping[str, int]]:
    """The model and its embodiments: `sizes.json`, else the base model where it is on this machine, else published."""
    if (folder / SIZES_FILE).is_file():
        told = read_json_object(folder / SIZES_FILE)
        ids = told.pop("embodiment_ids", EMBODIMENTS[version])
        if missing := [key for key in ("backbone_config", "select_layer", "image_target_size") if key not in told]:
            raise UserError(f"{folder / SIZES_FILE} does not describe a GR00T: it has no {', '.join(missing)}")
        return told, ids
    base = Path(str(values.get("base_model_path")))
    if (base / "config.json").is_file():
        return _completed(version, read_json_object(base / "config.json")), _ids(base, version)
    return published(version), EMBODIMENTS[version]


def _completed(version: Version, values: Mapping[str, Any]) -> dict[str, Any]:
    """The published model with what NVIDIA's `config.json` says; a key that is null says nothing."""
    known = published(version)
    return known | {key: each for key, each in values.items() if key in known and each is not None}


def _ids(folder: Path, version: Version) -> Mapping[str, int]:
    """Numbers of embodiments, from NVIDIA's file where there is one."""
    if not (folder / IDS_FILE).is_file():
        return EMBODIMENTS[version]
    return {name: int(number) for name, number in read_json_object(folder / IDS_FILE).items()}


def _width(features: Mapping[str, Any], name: str) -> int:
    return int((features.get(name) or {}).get("shape", [0])[0])


def _checked(config: GrootConfig) -> GrootConfig:
    """The policy, once head and backbone could be read; what a policy still lacks is told by `faults`."""
    try:
        _ = config.head, config.frame, config.parts
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{SIZES_FILE} does not describe a GR00T: {type(error).__name__}: {error}") from error
    return config
