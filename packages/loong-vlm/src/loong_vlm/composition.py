"""Models put together of parts of others: a tower from here, a projector from there, a language model of any family.

The whole is of the family of the model that it begins with where that family can describe it, so that its folder opens
wherever such models do; else of the family `composed`, which takes any parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loong_core.errors import UserError
from loong_core.json_text import read_json_object
from loong_llm.families.registry import named_configs as named_language_configs
from loong_llm.model_config import read_model_config
from loong_vlm.families.composed import COMPOSED, composed_config, leading_to
from loong_vlm.families.family import VisionFamily
from loong_vlm.families.registry import find_vision_family, named_vision_configs
from loong_vlm.model_config import VisionModelConfig, override_parts, read_vision_config
from loong_vlm.parts import LanguagePart


@dataclass(frozen=True)
class Grafts:
    """Which parts come from elsewhere; None: from the model that the composition begins with.

    Attributes:
        tower, projector: named sizes or folders of vision-language models.
        language: likewise, or of a language model.
    """

    tower: str | None = None
    projector: str | None = None
    language: str | None = None

    def __bool__(self) -> bool:
        return any((self.tower, self.projector, self.language))


@dataclass(frozen=True)
class Composition:
    """What a composed model is.

    Attributes:
        model: the whole.
        base: the model that it begins with.
        tower, projector: the models that these parts come from.
        language: likewise; None where it is from a model of loong-llm.
        projector_fits: whether the projector of its model fits between these parts, so that its weights can serve.
    """

    model: VisionModelConfig
    base: VisionModelConfig
    tower: VisionModelConfig
    projector: VisionModelConfig
    language: VisionModelConfig | None
    projector_fits: bool


def compose(source: str | Path, grafts: Grafts, overrides: Mapping[str, Any] | None = None) -> Composition:
    """The parts of several models as one; no weight is read.

    Args:
        source: the model to begin with; empty: that of the tower.
        grafts: what comes from elsewhere.
        overrides: keys of the whole's `config.json` to replace.

    Raises:
        UserError: a part is not named, is not there, or does not fit.
    """
    if not source and not (grafts.tower and grafts.language):
        raise UserError("model: without a source, tower and language are both named")
    base = read_vision_config(source or grafts.tower or "")
    tower = base if grafts.tower is None else read_vision_config(grafts.tower)
    projector = base if grafts.projector is None else read_vision_config(grafts.projector)
    language = None if grafts.language is not None and _is_language_model(grafts.language) else base
    if grafts.language is None:
        part = base.parts.language
    elif language is None:
        found = read_model_config(grafts.language)
        part = LanguagePart(found.family, found.config, found.hf_config)
    else:
        language = read_vision_config(grafts.language)
        part = language.parts.language
    hf, family = _config(base, tower, projector, part)
    hf = override_parts(hf, overrides or {}, family)
    model = VisionModelConfig(str(source or grafts.tower), hf, family, family.parts(hf), None)
    own, whole = projector.parts, model.parts
    fits = (own.projector_kind.name, own.projector) == (whole.projector_kind.name, whole.projector)
    if grafts.projector is not None and not fits:
        raise UserError(
            f"model.projector: that of {grafts.projector} takes features {own.tower.width} wide to a language model of "
            f"width {own.projector.hidden_size}; these parts are {whole.tower.width} and "
            f"{whole.projector.hidden_size} wide: leave it out, and a new one is drawn"
        )
    return Composition(model, base, tower, projector, language, fits)


def _config(
    base: VisionModelConfig, tower: VisionModelConfig, projector: VisionModelConfig, part: LanguagePart
) -> tuple[dict[str, Any], VisionFamily]:
    """The whole's `config.json`, and whose it is."""
    family, parts = base.family, base.parts
    same_kinds = (
        tower.parts.tower_kind.name == parts.tower_kind.name
        and projector.parts.projector_kind.name == parts.projector_kind.name
    )
    text_type = family.language_types.get(part.family.name)
    if family.name == COMPOSED.name or not same_kinds or text_type is None:
        return composed_config(tower, projector, part, base), COMPOSED
    hf = dict(base.hf_config)
    hf["vision_config"] = leading_to(part, tower.hf_config["vision_config"])
    text = {key: value for key, value in part.hf_config.items() if key not in ("architectures", "transformers_version")}
    hf["text_config"] = {**text, "model_type": text_type, **_rope(text, part, base)}
    hf["tie_word_embeddings"] = part.config.tie_embeddings
    return hf, family


def _rope(text: dict[str, Any], part: LanguagePart, base: VisionModelConfig) -> dict[str, Any]:
    """Rotary sections of the base's kind, for a language model that knows one axis only."""
    like, own = base.parts.language.config.attention.rotary, part.config.attention.rotary
    if not like.sections or own.sections:
        return {}
    half = own.dim // 2
    sections = [max(1, each * half // sum(like.sections)) for each in like.sections]
    sections[0] += half - sum(sections)
    told = dict(text.get("rope_parameters") or text.get("rope_scaling") or {"rope_type": "default"})
    told |= {"rope_theta": own.theta, "mrope_section": sections}
    return {"rope_parameters": told | ({"mrope_interleaved": True} if like.interleaved else {}), "rope_scaling": None}


def _is_language_model(source: str) -> bool:
    """Whether a name or folder is a model of loong-llm, and not one with a tower."""
    if source.lower() in named_language_configs():
        return True
    if source.lower() in named_vision_configs() or not (Path(source) / "config.json").is_file():
        return False
    try:
        find_vision_family(read_json_object(Path(source) / "config.json"))
    except UserError:
        return True
    return False
