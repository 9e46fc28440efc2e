"""From what a user calls a vision-language model to its parts' hyperparameters, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loong_llm.model_config import OPTIONAL_KEYS, find_hf_config, overridden
from loong_vlm.families.family import VisionFamily
from loong_vlm.families.registry import find_vision_family, named_vision_config, named_vision_configs
from loong_vlm.parts import ModelParts

_SECTIONS = ("text_config", "llm_config", "vision_config", "projector_config")


@dataclass(frozen=True)
class VisionModelConfig:
    """What a model is.

    Attributes:
        name: what the user called it.
        hf_config: its `config.json`, overrides applied.
        family: whose it is.
        parts: what it is made of.
        folder: where it was found, None for a named size.
    """

    name: str
    hf_config: dict[str, Any]
    family: VisionFamily
    parts: ModelParts
    folder: Path | None = None


def read_vision_config(source: str | Path, overrides: Mapping[str, Any] | None = None) -> VisionModelConfig:
    """Find a model and read its config.

    Args:
        source: name of a shipped size (these come first), or path of a folder with a `config.json`.
        overrides: keys of `config.json` to replace; those of a part in its section, such as `text_config`.

    Raises:
        UserError: if there is no such name or folder, no family serves it, or the config has faults (all told at once).
    """
    hf, folder = find_hf_config(source, named_vision_configs(), named_vision_config)
    family = find_vision_family(hf)
    if folder is not None and family.completed is not None:
        hf = family.completed(hf, folder)
    hf = override_parts(hf, overrides or {}, family)
    return VisionModelConfig(str(source), hf, family, family.parts(hf), folder)


def override_parts(hf: dict[str, Any], overrides: Mapping[str, Any], family: VisionFamily) -> dict[str, Any]:
    """`hf` with the overrides, those of its sections checked key by key.

    Raises:
        ConfigError: keys that would have no effect.
    """
    optional = OPTIONAL_KEYS | set(family.optional_keys)
    own = {}
    for key, value in overrides.items():
        if key in _SECTIONS and isinstance(value, Mapping) and isinstance(hf.get(key), dict):
            own[key] = overridden(hf[key], value, optional, f"model.overrides.{key}.")
        else:
            own[key] = value
    return overridden(hf, own, optional)
